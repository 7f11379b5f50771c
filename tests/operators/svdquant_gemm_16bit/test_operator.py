"""The operator's object: problem, oracle against hand arithmetic, that its comparison sees wrong outputs, torch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from kernel_space.core.arch import arch
from kernel_space.core.errors import InputError
from kernel_space.core.registry import kernels_of, operator
from kernel_space.operators.svdquant_gemm_16bit import runtime
from kernel_space.operators.svdquant_gemm_16bit.operator import OPERATOR
from kernel_space.operators.svdquant_gemm_16bit.problem import HalfGemmProblem
from kernel_space.operators.svdquant_gemm_16bit.wide.config import WideConfig
from tests.numerics.nvfp4_oracle import blocked_offset, e2m1_value, e4m3_value
from tests.operators.svdquant_gemm_16bit.runs import DTYPES
from tuner.runtime import launch

PROBLEM = HalfGemmProblem.parse("5,96,8,16", dtype="bf16")
CONFIG = WideConfig()


def by_hand(problem: HalfGemmProblem, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """y in float64, one element of the weights and one place of xs at a time."""
    k, groups = problem.k, problem.k // 16
    weights = torch.empty(problem.n, k, dtype=torch.float64)
    x = torch.empty(problem.m, k, dtype=torch.float64)
    for column in range(k):
        t, w, e, i = column % 64 // 16, column % 16 // 8, column % 8 // 4, column % 4
        place = column // 64 * 64 + 8 * (4 * w + 2 * (i % 2) + i // 2) + 2 * t + e
        x[:, column] = tensors["xs"][:, place].double()
        for row in range(problem.n):
            code = int(tensors["wgt"][row, column // 2]) >> 4 * (column % 2) & 15
            scale = int(tensors["wscales"][blocked_offset(row, column // 16, groups)])
            weights[row, column] = float(e2m1_value(code) * e4m3_value(scale))
    sums = x @ weights.T + tensors["lora_act_in"].double() @ tensors["lora_up"].double().T
    return sums * tensors["wcscale"].double() + tensors["bias"].double()


def filled(problem: HalfGemmProblem, source: str = "gaussian") -> dict[str, torch.Tensor]:
    """Inputs and the right y."""
    inputs = OPERATOR.inputs(problem, 1, source, "cpu")
    return {**inputs, "y": by_hand(problem, inputs).to(DTYPES[problem.dtype])}


def test_it_is_found_with_its_kernel() -> None:
    assert operator("svdquant_gemm_16bit") is OPERATOR
    assert [one.name for one in kernels_of("svdquant_gemm_16bit", arch("sm_90a"))] == ["wide", "narrow"]
    assert not kernels_of("svdquant_gemm_16bit", arch("sm_100a"))


def test_the_problem_prints_as_it_parses() -> None:
    problem = HalfGemmProblem.parse("4352,3840,3072,128", dtype="bf16")
    assert (problem.operator, str(problem)) == ("svdquant_gemm_16bit", "4352,3840,3072,128")
    assert str(problem.problem_class) == "r=128 dtype=bf16"
    assert HalfGemmProblem.from_record(problem.record()) == problem
    for text, reason in (
        ("1,48,8,0", "K must be a multiple of 32, got 48"),
        ("1,32,12,0", "N must be a multiple of 8, got 12"),
        ("1,32,8,24", "R must be a multiple of 16"),
    ):
        with pytest.raises(InputError, match=reason):
            HalfGemmProblem.parse(text)
    with pytest.raises(InputError, match="dtype must be one of fp16, bf16, got 'fp32'"):
        HalfGemmProblem.parse("1,32,8,0", dtype="fp32")


@pytest.mark.parametrize("source", OPERATOR.sources)
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("r", [0, 48])
def test_inputs_are_what_the_signature_says_and_y_by_hand_is_right(source: str, dtype: str, r: int) -> None:
    problem = HalfGemmProblem.parse(f"5,96,8,{r}", dtype=dtype)
    tensors, specs = filled(problem, source), OPERATOR.signature.tensors(problem)
    assert tuple(tensors) == tuple(specs)
    for name, tensor in tensors.items():
        assert tuple(tensor.shape) == specs[name].shape and tensor.nbytes == specs[name].nbytes
    assert specs["xs"].shape == (5, 128)
    found = OPERATOR.compare(problem, tensors, CONFIG)["y"]
    assert found.ok and found.elements == 5 * 8


def test_significands_of_xs_are_full() -> None:
    """As of activations that were never NVFP4: more than what one of its codes times a scale has, 6 bits."""
    xs = OPERATOR.inputs(HalfGemmProblem.parse("64,96,8,0"), 1, "gaussian", "cpu")["xs"].float()
    mantissa, _ = torch.frexp(xs[xs != 0])
    assert ((mantissa * 64).frac() != 0).double().mean() > 0.9


def wrong(name: str) -> dict[str, torch.Tensor]:
    """y of inputs that differ from those that it is compared with."""
    tensors = filled(PROBLEM)
    other = {one: tensor.clone() for one, tensor in tensors.items()}
    if name == "two columns of xs":
        other["xs"][:, [0, 1]] = other["xs"][:, [1, 0]]
    elif name == "a scale of the neighbour":
        at, beside = (blocked_offset(3, group, 6) for group in (1, 2))
        other["wscales"][at] = other["wscales"][beside]
        other["wscales"][beside] += 4
    elif name == "no LoRA":
        other["lora_act_in"].zero_()
    elif name == "LoRA not scaled":
        other["lora_up"] = (other["lora_up"] / other["wcscale"][:, None]).bfloat16()
    elif name == "no bias":
        other["bias"].zero_()
    return {**tensors, "y": by_hand(PROBLEM, other).bfloat16()}


@pytest.mark.parametrize(
    "name", ["two columns of xs", "a scale of the neighbour", "no LoRA", "LoRA not scaled", "no bias"]
)
def test_y_of_other_inputs_is_seen(name: str) -> None:
    assert not OPERATOR.check(PROBLEM, wrong(name), CONFIG)["y"].ok
    assert OPERATOR.check(PROBLEM, wrong("nothing"), CONFIG)["y"].ok


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_one_wrong_element_is_named(value: float) -> None:
    tensors = filled(PROBLEM)
    tensors["y"][4, 7] = value
    found = OPERATOR.check(PROBLEM, tensors, CONFIG)["y"]
    assert (found.ok, found.bad, found.worst_index) == (False, 1, (4, 7))


def test_ragged_variants_are_of_the_same_class() -> None:
    whole = HalfGemmProblem.parse("4352,3840,3072,128", dtype="bf16")
    found = OPERATOR.ragged(WideConfig.parse("tile_mnk=128x200x128"), whole)
    assert found and all(isinstance(one, HalfGemmProblem) for one in found)
    assert {one.problem_class for one in found} == {whole.problem_class}
    assert any(one.m % 200 and one.n % 128 and one.k % 128 for one in found)


def test_work_and_bytes() -> None:
    """10 x 32 x 8 multiply-adds, and 10 x 16 x 8 of LoRA, two operations each."""
    work = OPERATOR.work(HalfGemmProblem.parse("10,32,8,16", dtype="bf16"))
    assert work.operations == {"bf16": 2 * 10 * 8 * (32 + 16)}


# -- torch --


@pytest.mark.parametrize("r", [0, 16])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_reference_in_torch(r: int, dtype: str) -> None:
    problem = HalfGemmProblem.parse(f"5,96,8,{r}", dtype=dtype)
    tensors = OPERATOR.inputs(problem, 1, "gaussian", "cpu")
    assert runtime.problem_of(tensors) == problem
    made = runtime.reference(tensors, problem)["y"]
    wanted = by_hand(problem, tensors)
    assert made.dtype == DTYPES[dtype]
    assert torch.allclose(made.double(), wanted, rtol=2**-7 if dtype == "bf16" else 2**-10, atol=1e-3)


def test_it_is_launched_by_name_where_no_card_is() -> None:
    problem = HalfGemmProblem.parse("5,96,8,16")
    tensors = OPERATOR.inputs(problem, 1, "gaussian", "cpu")
    found = launch("svdquant_gemm_16bit", "5,96,8,16", tensors)
    assert torch.equal(found["y"], runtime.reference(tensors, problem)["y"])


def test_a_kernel_of_a_larger_rank_stands_in() -> None:
    """Ranks are padded with zeros, which add nothing."""
    found = runtime.stand_in(PROBLEM, HalfGemmProblem.parse("5,96,8,32", dtype="bf16"))
    assert found is not None and found.problem.r == 32 and found.adapt is not None
    tensors = OPERATOR.inputs(PROBLEM, 1, "gaussian", "cpu")
    padded = found.adapt(tensors)
    assert padded["lora_act_in"].shape == (5, 32) and padded["lora_up"].shape == (8, 32)
    assert torch.equal(
        runtime.reference(padded, found.problem)["y"], runtime.reference(tensors, PROBLEM)["y"]
    )
    assert runtime.stand_in(PROBLEM, HalfGemmProblem.parse("5,96,8,0", dtype="bf16")) is None


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("xs", lambda t: t[:, :96].contiguous(), "xs must be"),
        ("xs", lambda t: t.half(), "xs must be"),
        ("xs", lambda t: t.flatten(), r"xs must be \[M, 128\], got \[640\]"),
        ("wgt", lambda t: t.int(), "wgt must be"),
        ("wscales", lambda t: t[:-1], "wscales must be"),
        ("lora_act_in", lambda t: t[:4], "lora_act_in must be"),
        ("lora_up", lambda t: t.float(), "lora_up must be"),
        ("wcscale", lambda t: t.half(), "wcscale must be"),
        ("bias", lambda t: t[:7], "bias must be"),
    ],
)
def test_tensors_that_do_not_fit(name: str, change: Any, reason: str) -> None:
    tensors = dict(OPERATOR.inputs(PROBLEM, 1, "gaussian", "cpu"))
    tensors[name] = change(tensors[name])
    with pytest.raises(InputError, match=reason):
        runtime.problem_of(tensors)
