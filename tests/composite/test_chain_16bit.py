"""``svdquant_linear_16bit``: what one link writes is what the next reads; the layer by hand; one run in the machine."""

from __future__ import annotations

import pytest
import torch

from kernel_space.build.build import build
from kernel_space.check.validate import check_full
from kernel_space.core import registry
from kernel_space.core.arch import SM90A
from kernel_space.core.rules import Legal, legalize
from kernel_space.numerics.nvfp4 import NVFP4Tensor, dequantize_nvfp4, unblock_scales
from kernel_space.operators.nvfp4_quantize.packing import unpack_lora_down
from kernel_space.operators.svdquant_linear_16bit import runtime
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem
from tuner.space.space import SearchSpace

NAME = "svdquant_linear_16bit"
LAYER = (
    "kernel=smooth_tma+wide smooth_tile_m=40 smooth_quant_warps=4 smooth_split_k=3 smooth_num_stage=2 "
    "smooth_ctas_per_sm=2 smooth_use_pdl=true gemm_tile_mnk=128x32x128 gemm_use_pdl=true"
)
ROWS = "kernel=smooth_rows+wide gemm_tile_mnk=64x40x128 gemm_consumer_warpgroups=1 gemm_stream_k=true"
FEW = (
    "kernel=smooth_mma+narrow smooth_rows_per_warp=16 smooth_warps_m=1 smooth_warps_k=8 smooth_split_k=2 "
    "smooth_ctas_per_sm=2 smooth_use_pdl=true gemm_tile_mnk=64x16x128 gemm_split_k=2 gemm_use_pdl=true"
)
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@pytest.mark.parametrize("shape", ["1,32,8,0", "131,416,72,16", "4352,3840,3072,128"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_what_one_link_writes_is_what_the_next_reads(shape: str, dtype: str) -> None:
    whole = HalfLinearProblem.parse(shape, dtype=dtype)
    composed = registry.operator(NAME).composed
    assert composed is not None
    smooth, gemm = composed.links
    ours, theirs = (
        registry.operator(link.operator).signature.tensors(link.problem(whole)) for link in (smooth, gemm)
    )
    assert {name for name in ours if name in theirs} == {"xs", "lora_act_in"}
    assert ours["xs"] == theirs["xs"] and ours["lora_act_in"].nbytes == theirs["lora_act_in"].nbytes
    assert not whole.r or ours["lora_act_in"] == theirs["lora_act_in"]
    chain = registry.operator(NAME).signature
    assert list(chain.inputs) == ["x", "smooth", "lora_down", "wgt", "wscales", "lora_up", "wcscale", "bias"]
    assert list(chain.tensors(whole))[len(chain.inputs) :] == ["xs", "lora_act_in", "y"]


@pytest.mark.parametrize("r", [0, 16])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_layer_by_hand(r: int, dtype: str) -> None:
    """``y = (x / smooth) @ wgt.T + (x @ lora_down) @ lora_up.T``, scaled and with bias, in float64."""
    problem = HalfLinearProblem.parse(f"5,96,8,{r}", dtype=dtype)
    tensors = registry.operator(NAME).inputs(problem, 1, "gaussian", "cpu")
    assert runtime.problem_of(tensors) == problem
    made = runtime.reference(tensors, problem)
    codes = NVFP4Tensor(codes=tensors["wgt"], scales=unblock_scales(tensors["wscales"], 8, 96))
    x = tensors["x"].double()
    sums = (x / tensors["smooth"].double()) @ dequantize_nvfp4(codes).double().T
    if r:
        sums += x @ unpack_lora_down(tensors["lora_down"], 96).double() @ tensors["lora_up"].double().T
    wanted = sums * tensors["wcscale"].double() + tensors["bias"].double()
    assert made["y"].dtype == DTYPES[dtype]
    error = (made["y"].double() - wanted).norm() / wanted.norm()
    assert error < {"fp16": 2**-10, "bf16": 2**-7}[dtype]


def test_the_search_spaces_of_the_links_make_that_of_the_layer() -> None:
    """The default rule of each, with its name before the knobs."""
    space = SearchSpace.load(NAME, SM90A)
    problem = HalfLinearProblem.parse("4352,3840,3072,128", dtype="bf16")
    config = space.default(problem)
    assert isinstance(legalize(config, problem, SM90A), Legal)
    assert config.kernel == "smooth_tma+wide"


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        (LAYER, "67,416,136,16", "bf16"),
        (ROWS, "33,160,72,0", "fp16"),
        pytest.param(FEW, "17,416,72,16", "bf16", marks=pytest.mark.slow),
    ],
)
def test_the_whole_layer_is_right_in_the_machine(text: str, shape: str, dtype: str) -> None:
    """M and N that end within a tile, K that ends within a span; the GEMM reads what the first link wrote."""
    whole = HalfLinearProblem.parse(shape, dtype=dtype)
    legal = legalize(registry.parse_config(NAME, SM90A, text), whole, SM90A)
    assert isinstance(legal, Legal), legal
    kernel = build(legal.config, whole.problem_class, SM90A)
    result = check_full(kernel, legal.config, whole)
    assert result.ok, result
    assert {"xs", "y"} <= set(result.outputs)
    assert result.outputs["xs"].max_error == 0
