"""The kernel executed: ragged tiles, padding, every activation, split K; and beside ``svdquant_gemm`` to the bit."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from kernel_space.build.build import build
from kernel_space.check.validate import check_candidate
from kernel_space.core.arch import SM100A
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernel_of, operator_of
from kernel_space.core.rules import Legal, legalize
from kernel_space.launch.capture import capture
from kernel_space.machine.memory.global_memory import GlobalMemory
from kernel_space.machine.run.launch import add_tensor
from kernel_space.machine.run.run import run_launch
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from kernel_space.operators.svdquant_gemm_nvfp4.problem import QuantizedGemmProblem
from tests.operators.svdquant_gemm_nvfp4 import by_hand

UNTOUCHED = 0xA5
SMALL = "mma_tiler_mn=128x64 mma_tiler_k=128 cluster_shape_mn=1x1 num_ab_stage=3 epi_tile_n=32"
DTYPES = {"uint8": torch.uint8, "fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def legal(text: str, problem: Problem) -> Any:
    found = legalize(KernelConfigSm100a.parse(text), problem, SM100A)
    assert isinstance(found, Legal), found
    return found.config


def run(
    text: str,
    problem: Problem,
    inputs: dict[str, torch.Tensor],
    *,
    change: tuple[str, str] | None = None,
    schedule: str = "random",
) -> tuple[Any, dict[str, torch.Tensor], dict[str, bool]]:
    """(the run, outputs, whether each is right). ``change``: a pattern in the PTX and what takes its place."""
    operator, config = operator_of(problem), legal(text, problem)
    compiled = build(config, problem.problem_class, SM100A)
    ptx = compiled.ptx
    if change is not None:
        ptx, count = re.subn(change[0], change[1], ptx)
        assert count
    outputs = {}
    for name in operator.signature.outputs:
        spec = operator.signature.tensors(problem)[name]
        data = torch.full((spec.nbytes,), UNTOUCHED, dtype=torch.uint8)
        outputs[name] = data.view(DTYPES[spec.dtype]).view(spec.shape)
    room = kernel_of(config, problem).room(config, problem)
    workspace = torch.zeros(room.size + 256, dtype=torch.uint8)
    tensors = {**inputs, **outputs, "workspace": workspace[-workspace.data_ptr() % 256 :]}
    memory = GlobalMemory()
    for name, tensor in tensors.items():
        add_tensor(memory, tensor, name)
    pointers = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    (launch,) = capture(compiled, *operator.signature.values(problem, pointers, clusters=2))
    result = run_launch(launch, ptx, memory, sms=4, schedule=schedule, seed=1, check_races=True)
    checks = operator.check(problem, tensors, config)
    return result, outputs, {name: one.ok for name, one in checks.items()}


PROBLEM = QuantizedGemmProblem.parse("133,160,96,16", activation="silu")
INPUTS = operator_of(PROBLEM).inputs(PROBLEM, 3, "gaussian", "cpu")


def test_ragged_tiles_and_padding() -> None:
    """Two tiles each way, 5 rows and 32 columns in the last ones: half a block of scales, and 123 rows of one."""
    result, outputs, right = run(SMALL, PROBLEM, INPUTS)
    assert result.ok and all(right.values()), result
    exact = by_hand.outputs(PROBLEM, INPUTS)
    for name, tensor in exact.items():  # y is a neighbour now and then
        assert (outputs[name] == tensor).float().mean() > 0.97
    assert outputs["next_ascales"].view(2, 2, 32, 4, 4)[1, :, 5:].count_nonzero() == 0
    assert outputs["next_ascales"].view(2, 2, 32, 4, 4)[:, 1, :, :, 2:].count_nonzero() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "into"),
    [
        (r"(cvt\.rn\.satfinite\.e2m1x2\.f32 b0), (\S+), (\S+);", r"\1, \3, \2;"),
        (r"(max\.NaN\.abs\.f32 \S+, \S+, \S+,) \S+;", r"\1 0f00000000;"),
        (r"div\.rn\.f32 (\S+), \S+, (\S+);", r"mov.b32 \1, \2;"),
        (r"cvt\.rn\.satfinite\.e4m3x2\.f32 h, (\S+), (\S+);", r"cvt.rn.satfinite.e4m3x2.f32 h, \2, \1;"),
    ],
    ids=["two codes exchanged", "every third column not in the amax", "times smooth", "scales exchanged"],
)
def test_wrong_numbers_are_seen(pattern: str, into: str) -> None:
    result, _, right = run(SMALL, PROBLEM, INPUTS, change=(pattern, into), schedule="eager")
    assert result.ok and not all(right.values())


CASES = [
    ("mma_tiler_mn=128x64 cluster_shape_mn=1x1 epi_tile_n=32", "none", "bf16", "fp32"),
    ("mma_tiler_mn=128x128 cluster_shape_mn=2x1 epi_tile_n=64 split_k=2", "swiglu", "fp16", "fp32"),
    ("mma_tiler_mn=256x256 epi_tile_n=128", "swiglu", "bf16", "none"),
    ("mma_tiler_mn=256x256 epi_tile_n=64 lora_buffer=ab_stage use_pdl=true", "gelu_tanh", "fp16", "fp32"),
    ("mma_tiler_mn=256x192 mma_tiler_k=128 epi_tile_n=64 split_k=2", "gelu_tanh", "fp16", "none"),
    ("mma_tiler_mn=256x128 epi_tile_n=128 num_c_stage=1 num_acc_stage=1", "silu", "fp16", "fp32"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("text", "activation", "dtype", "smooth"), CASES)
def test_every_schedule(text: str, activation: str, dtype: str, smooth: str) -> None:
    options = {"activation": activation, "lora_dtype": dtype, "out_dtype": dtype, "smooth": smooth}
    problem = QuantizedGemmProblem.parse("453,736,576,64", **options)
    config = legal(text, problem)
    found = check_candidate(build(config, problem.problem_class, SM100A), config, problem)
    assert str(found.status) == "OK", found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "activation", "source"),
    [
        ("mma_tiler_mn=256x128 epi_tile_n=64", "gelu_tanh", "gaussian"),
        ("mma_tiler_mn=128x128 cluster_shape_mn=1x1 epi_tile_n=32", "swiglu", "scales"),
    ],
)
def test_fused_is_separate_to_the_bit(text: str, activation: str, source: str) -> None:
    """y of ``svdquant_gemm`` with the same knobs, packed by exact rationals; some of "scales" is not finite."""
    problem = QuantizedGemmProblem.parse("150,352,320,16", activation=activation)
    inputs = operator_of(problem).inputs(problem, 3, source, "cpu")
    same = GemmProblem.parse("150,352,320,16", activation=activation)
    plain = {name: tensor for name, tensor in inputs.items() if name != "next_smooth"}
    y = run(text, same, plain)[1]["y"]
    _, made, right = run(text, problem, inputs)
    finite = torch.isfinite(y)
    assert all(right.values()) and finite.all() == (source == "gaussian")
    exact = by_hand.quantized(y.masked_fill(~finite, 0.0), inputs["next_smooth"])
    whole = finite.view(150, -1, 16).all(dim=2)
    same_codes = (made["next_act"] == exact["next_act"]).view(150, -1, 8).all(dim=2)
    assert same_codes[whole].all()
    if source == "gaussian":
        assert (made["next_ascales"] == exact["next_ascales"]).all()
    assert (made["next_ascales"] == 0x7F).sum() == (~whole).sum()
