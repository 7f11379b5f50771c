"""The operator's object: problem, inputs, that its comparison sees a single wrong bit, and what torch needs of it."""

from __future__ import annotations

import math

import pytest
import torch

from kernel_space.core.arch import arch
from kernel_space.core.errors import InputError
from kernel_space.core.registry import kernels_of, operator, parse_config
from kernel_space.numerics.quad_order import from_quad_order
from kernel_space.operators.nvfp4_quantize.packing import pack_lora_down, unpack_lora_down
from kernel_space.operators.smooth_lora_down import operands, runtime
from kernel_space.operators.smooth_lora_down.operator import OPERATOR
from kernel_space.operators.smooth_lora_down.problem import SmoothProblem
from kernel_space.operators.smooth_lora_down.reference import expected_xs
from kernel_space.operators.smooth_lora_down.smooth_rows.config import SmoothRowsConfig
from tuner.runtime import launch

PROBLEM = SmoothProblem.parse("131,96,16")
KERNELS = ["smooth_rows", "smooth_mma", "smooth_tma"]


def filled(problem: SmoothProblem, source: str = "gaussian") -> dict[str, torch.Tensor]:
    """Inputs and right outputs."""
    inputs = OPERATOR.inputs(problem, 0, source, "cpu")
    lora = torch.empty(problem.m, 0, dtype=torch.uint8)
    if problem.r:
        plain = unpack_lora_down(inputs["lora_down"], problem.k)
        lora = (inputs["x"].double() @ plain.double()).to(inputs["x"].dtype)
    smooth = inputs["smooth"] if problem.smooth == "fp32" else None
    return {**inputs, "xs": expected_xs(inputs["x"], smooth), "lora_act_in": lora}


def test_it_is_found_with_its_kernels() -> None:
    assert operator("smooth_lora_down") is OPERATOR
    assert [one.name for one in kernels_of("smooth_lora_down", arch("sm_90a"))] == KERNELS
    assert not kernels_of("smooth_lora_down", arch("sm_100a"))
    config = parse_config("smooth_lora_down", arch("sm_90a"), "kernel=smooth_rows rows=64")
    assert isinstance(config, SmoothRowsConfig) and str(config).startswith("kernel=smooth_rows rows=64 ")


def test_the_problem_prints_as_it_parses() -> None:
    problem = SmoothProblem.parse("4352,3840,128", x_dtype="bf16", smooth="none")
    assert (problem.operator, str(problem)) == ("smooth_lora_down", "4352,3840,128")
    assert str(problem.problem_class) == "r=128 x_dtype=bf16 smooth=none"
    assert SmoothProblem.from_record(problem.record()) == problem
    for text, reason in (
        ("1,48,0", "K must be a multiple of 32, got 48"),
        ("1,32,24", "R must be a multiple of 16"),
    ):
        with pytest.raises(InputError, match=reason):
            SmoothProblem.parse(text)
    with pytest.raises(InputError, match="x_dtype must be one of fp16, bf16, got 'fp32'"):
        SmoothProblem.parse("1,32,0", x_dtype="fp32")


@pytest.mark.parametrize("source", OPERATOR.sources)
@pytest.mark.parametrize("x_dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("smooth", ["fp32", "none"])
@pytest.mark.parametrize("r", [0, 48])
def test_inputs_are_what_the_signature_says(source: str, x_dtype: str, smooth: str, r: int) -> None:
    problem = SmoothProblem.parse(f"131,96,{r}", x_dtype=x_dtype, smooth=smooth)
    tensors, specs = filled(problem, source), OPERATOR.signature.tensors(problem)
    assert tuple(tensors) == tuple(specs)
    for name, tensor in tensors.items():
        assert tuple(tensor.shape) == specs[name].shape and tensor.is_contiguous()
        assert tensor.nbytes == specs[name].nbytes
    assert specs["xs"].shape == (131, 128)
    for name, one in OPERATOR.compare(problem, tensors, SmoothRowsConfig()).items():
        assert one.ok and one.elements == tensors[name].numel()


@pytest.mark.parametrize("chunk", [1, 1 << 24])
@pytest.mark.parametrize("place", [(130, 127), (0, 0), (77, 6)])
def test_one_wrong_bit_is_seen_and_named(
    place: tuple[int, int], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also beyond K, also when the oracle works row by row."""
    monkeypatch.setattr(operands, "CHUNK_ELEMENTS", chunk)
    tensors = filled(PROBLEM)
    tensors["xs"].view(torch.int16)[place] ^= 1
    found = OPERATOR.check(PROBLEM, tensors, SmoothRowsConfig())
    assert found["lora_act_in"].ok and found["xs"].bad == 1 and not found["xs"].ok
    assert found["xs"].worst_index == place and found["xs"].elements == 131 * 128
    tensors = filled(PROBLEM)
    tensors["lora_act_in"][129, 5] += 1
    found = OPERATOR.check(PROBLEM, tensors, SmoothRowsConfig())
    assert found["xs"].ok and found["lora_act_in"].worst_index == (129, 5) and found["lora_act_in"].bad == 1


@pytest.mark.parametrize(("smooth", "wrong"), [("fp32", 0), ("none", 1)])
def test_another_nan_is_right_where_numbers_are_multiplied(smooth: str, wrong: int) -> None:
    problem = SmoothProblem.parse("3,32,0", smooth=smooth)
    tensors = filled(problem)
    tensors["x"][1, 0] = math.nan
    tensors["xs"] = expected_xs(tensors["x"], tensors["smooth"] if smooth == "fp32" else None)
    tensors["xs"].view(torch.int16)[1, 0] ^= 1
    assert OPERATOR.check(problem, tensors, SmoothRowsConfig())["xs"].bad == wrong
    tensors["xs"][1, 0] = 1.0
    assert OPERATOR.check(problem, tensors, SmoothRowsConfig())["xs"].bad == 1


def test_ragged_variants_cut_rows_and_spans_elsewhere() -> None:
    config = SmoothRowsConfig.parse("rows=32")
    found = OPERATOR.ragged(config, SmoothProblem.parse("4352,3840,0", x_dtype="bf16"))
    assert [str(one) for one in found] == ["4349,3808,0", "133,352,0", "1,32,0"]
    assert all(isinstance(one, SmoothProblem) and one.x_dtype == "bf16" for one in found)


def test_work() -> None:
    assert OPERATOR.work(SmoothProblem.parse("10,32,0")).operations == {"fp32": 320}
    lora = OPERATOR.work(SmoothProblem.parse("10,32,16", x_dtype="bf16", smooth="none")).operations
    assert lora == {"fp32": 0, "bf16": 2 * 10 * 32 * 16}


# -- torch --


def inputs_of(x: torch.Tensor, r: int, has_smooth: bool) -> dict[str, torch.Tensor]:
    k = x.shape[1]
    draw = torch.Generator().manual_seed(r)
    down = torch.randn(k, r, generator=draw).to(x.dtype)
    smooth = torch.rand(k if has_smooth else 0, generator=draw) + 0.5
    return {"x": x, "smooth": smooth, "lora_down": pack_lora_down(down)}


@pytest.mark.parametrize("r", [0, 16])
@pytest.mark.parametrize("has_smooth", [True, False])
def test_the_reference_in_torch(r: int, has_smooth: bool) -> None:
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(1)).bfloat16()
    tensors = inputs_of(x, r, has_smooth)
    problem = runtime.problem_of(tensors)
    assert problem == SmoothProblem(m=5, k=96, r=r, x_dtype="bf16", smooth="fp32" if has_smooth else "none")
    made = runtime.reference(tensors, problem)
    plain = from_quad_order(made["xs"], 96)
    wanted = x.float() * (1 / tensors["smooth"]) if has_smooth else x
    assert torch.equal(plain, wanted.bfloat16())
    exact = x.double() @ unpack_lora_down(tensors["lora_down"], 96).double()
    assert torch.allclose(made["lora_act_in"].double(), exact, rtol=2**-8, atol=1e-3)


def test_it_is_launched_by_name_where_no_card_is() -> None:
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(1)).half()
    tensors = inputs_of(x, 16, True)
    found = launch("smooth_lora_down", "5,96,16", tensors)
    wanted = runtime.reference(tensors, runtime.problem_of(tensors))
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


@pytest.mark.parametrize(
    ("name", "tensor", "reason"),
    [
        ("x", torch.zeros(5, 96), r"x must be float16 or bfloat16 \[M, K\], got float32 \[5, 96\]"),
        ("x", torch.zeros(96).half(), r"x must be float16 or bfloat16 \[M, K\]"),
        ("smooth", torch.ones(32), "smooth must be"),
        ("lora_down", torch.zeros(96, 16).half(), "lora_down must be packed"),
        ("lora_down", torch.zeros(2, 16, 64).bfloat16(), "lora_down must be"),
    ],
)
def test_tensors_that_do_not_fit(name: str, tensor: torch.Tensor, reason: str) -> None:
    tensors = {**inputs_of(torch.zeros(5, 96).half(), 16, True), name: tensor}
    with pytest.raises(InputError, match=reason):
        runtime.problem_of(tensors)
