"""The operator's object: problem, oracle against exact rationals, that its comparison sees wrong outputs, torch."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch

from kernel_space.core.arch import SM100A, arch
from kernel_space.core.errors import InputError
from kernel_space.core.registry import kernels_of, operator
from kernel_space.core.rules import Legal, Rejection, legalize
from kernel_space.operators.svdquant_gemm.inputs import PackedInputs
from kernel_space.operators.svdquant_gemm.reference import packed_bounds
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from kernel_space.operators.svdquant_gemm_nvfp4 import runtime
from kernel_space.operators.svdquant_gemm_nvfp4.operator import OPERATOR
from kernel_space.operators.svdquant_gemm_nvfp4.problem import QuantizedGemmProblem
from kernel_space.operators.svdquant_gemm_nvfp4.reference import admissible
from tests.numerics.nvfp4_oracle import blocked_offset
from tests.operators.svdquant_gemm_nvfp4 import by_hand
from tuner.space.space import SearchSpace

PROBLEM = QuantizedGemmProblem.parse("5,96,96,16", activation="gelu_tanh")
CONFIG = KernelConfigSm100a()


@functools.cache
def made(problem: QuantizedGemmProblem) -> dict[str, torch.Tensor]:
    inputs = OPERATOR.inputs(problem, 1, "gaussian", "cpu")
    return {**inputs, **by_hand.outputs(problem, inputs)}


@functools.cache
def y_of_problem() -> torch.Tensor:
    return by_hand.y_of(PROBLEM, made(PROBLEM))


def filled(problem: QuantizedGemmProblem) -> dict[str, torch.Tensor]:
    """Inputs and the right outputs, the caller's own."""
    return {name: tensor.clone() for name, tensor in made(problem).items()}


def found(tensors: dict[str, torch.Tensor], problem: QuantizedGemmProblem = PROBLEM) -> dict[str, bool]:
    return {name: one.ok for name, one in OPERATOR.compare(problem, tensors, CONFIG).items()}


def test_it_is_found_with_its_kernel() -> None:
    assert operator("svdquant_gemm_nvfp4") is OPERATOR
    assert [one.name for one in kernels_of(OPERATOR.name, SM100A)] == ["sm100a"]
    assert not kernels_of(OPERATOR.name, arch("sm_90a"))


def test_the_problem_prints_as_it_parses() -> None:
    problem = QuantizedGemmProblem.parse("4352,3072,12288,128", activation="gelu_tanh")
    assert (problem.operator, str(problem)) == ("svdquant_gemm_nvfp4", "4352,3072,12288,128")
    assert str(problem.problem_class) == (
        "r=128 lora_dtype=fp16 out_dtype=fp16 activation=gelu_tanh smooth=fp32"
    )
    assert QuantizedGemmProblem.from_record(problem.record()) == problem


@pytest.mark.parametrize(
    ("shape", "activation", "message"),
    [
        ("1,32,40,0", "none", "N must be a multiple of 32, got 40; use 32 or 64"),
        ("1,32,96,0", "swiglu", "N must be a multiple of 64 with activation=swiglu and output in NVFP4"),
        ("1,32,32,0", "swiglu", "got 32; use 64"),
    ],
)
def test_columns_that_make_no_next_k(shape: str, activation: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        QuantizedGemmProblem.parse(shape, activation=activation)


def test_padding_is_part_of_the_output() -> None:
    """Three blocks of 64 columns for 160, two of 128 rows for 130."""
    specs = OPERATOR.signature.tensors(QuantizedGemmProblem.parse("130,64,320,0", activation="swiglu"))
    assert (specs["next_act"].shape, specs["next_ascales"].shape) == ((130, 80), (2 * 3 * 512,))
    assert specs["next_smooth"].shape == (160,)


# ------------------------------------------------------------------ the oracle


@pytest.mark.parametrize(
    ("activation", "dtype", "smooth", "r"),
    [("gelu_tanh", "fp16", "fp32", 16), ("swiglu", "bf16", "none", 0), ("none", "bf16", "fp32", 16)],
)
def test_outputs_by_hand_are_right(activation: str, dtype: str, smooth: str, r: int) -> None:
    options = {"activation": activation, "out_dtype": dtype, "lora_dtype": dtype, "smooth": smooth}
    problem = QuantizedGemmProblem.parse(f"5,96,64,{r}", **options)
    tensors, specs = filled(problem), OPERATOR.signature.tensors(problem)
    assert tuple(tensors) == tuple(specs)
    assert all(tuple(tensor.shape) == specs[name].shape for name, tensor in tensors.items())
    assert all(found(tensors, problem).values())


def test_the_torch_reference_is_right() -> None:
    tensors = filled(PROBLEM)
    inputs = {name: tensors[name] for name in OPERATOR.signature.inputs}
    problem = runtime.problem_of(inputs, activation="gelu_tanh")
    outputs = runtime.reference(inputs, problem)
    assert problem == PROBLEM and all(found({**inputs, **outputs}).values())
    assert (outputs["next_ascales"] == tensors["next_ascales"]).float().mean() > 0.99
    plain = runtime.problem_of({**inputs, "next_smooth": torch.empty(0)}, activation="gelu_tanh")
    assert plain.smooth == "none"
    with pytest.raises(InputError, match="next_smooth"):
        runtime.problem_of({**inputs, "next_smooth": torch.ones(95)}, activation="gelu_tanh")


def test_nearly_all_is_judged_to_the_bit() -> None:
    """Where y is one 16-bit number or the other, most codes are the same for both."""
    tensors = filled(PROBLEM)
    names = [name for name in OPERATOR.signature.inputs if name != "next_smooth"]
    inputs = PackedInputs(**{name: tensors[name] for name in names})
    ((_, low, high),) = packed_bounds(inputs, "fp16", activation="gelu_tanh")
    allowed = admissible(low, high, tensors["next_smooth"], tensors["next_ascales"])
    y = y_of_problem().half()
    assert (low <= y).all() and (high >= y).all()
    least, most = (codes + (codes < 0) for codes in (allowed.least, allowed.most))  # -0 is 0
    assert (least == most).float().mean() > 0.97
    assert (allowed.ascales == allowed.top).float().mean() > 0.99


def wrong(name: str) -> dict[str, torch.Tensor]:
    """Outputs of inputs that differ from those that they are compared with."""
    tensors = filled(PROBLEM)
    other = {one: tensor.clone() for one, tensor in tensors.items()}
    if name == "no smooth":
        other["next_smooth"].fill_(1)
    elif name == "smooth of the neighbour":
        other["next_smooth"] = other["next_smooth"].roll(1)
    elif name == "multiplied by smooth":
        other["next_smooth"] = 1 / other["next_smooth"]
    elif name == "no LoRA":
        other["lora_act_in"].zero_()
    elif name == "no bias":
        other["bias"].zero_()
    if "smooth" in name:
        return {**tensors, **by_hand.quantized(y_of_problem().half(), other["next_smooth"])}
    problem = QuantizedGemmProblem.parse("5,96,96,16", activation="silu" if name == "SiLU" else "gelu_tanh")
    return {**tensors, **by_hand.outputs(problem, other)}


@pytest.mark.parametrize(
    "name",
    ["no smooth", "smooth of the neighbour", "multiplied by smooth", "no LoRA", "no bias", "SiLU"],
)
def test_outputs_of_other_inputs_are_seen(name: str) -> None:
    assert not all(found(wrong(name)).values())


def broken(name: str) -> tuple[str, dict[str, torch.Tensor]]:
    """(the output that is wrong, all tensors): one byte, or two."""
    tensors = filled(PROBLEM)
    act, scales = tensors["next_act"], tensors["next_ascales"]
    at = blocked_offset(3, 2, 6)
    if name == "a code one step up":
        column = next(i for i in range(48) if act[2, i] & 7 < 6)
        act[2, column] += 1
    elif name == "a sign":
        column = next(i for i in range(48) if act[2, i] >> 4 & 7)
        act[2, column] ^= 0x80
    elif name == "nibbles exchanged":
        column = next(i for i in range(48) if act[2, i] & 15 != act[2, i] >> 4)
        act[2, column] = (act[2, column] >> 4) | (act[2, column] << 4 & 0xFF)
    elif name == "a scale two steps up":
        scales[at] += 2
    elif name == "padding rows":
        scales[blocked_offset(5, 0, 6)] = 1
    elif name == "padding columns":
        scales[blocked_offset(3, 5, 6) + 1] = 1
    return ("next_act" if "scale" not in name and "padding" not in name else "next_ascales"), tensors


@pytest.mark.parametrize(
    "name",
    [
        "a code one step up",
        "a sign",
        "nibbles exchanged",
        "a scale two steps up",
        "padding rows",
        "padding columns",
    ],
)
def test_one_wrong_byte_is_seen(name: str) -> None:
    output, tensors = broken(name)
    assert not found(tensors)[output]


def test_blocks_that_are_not_finite() -> None:
    """fp16 overflows: the scale is NaN, codes may be anything, and a finite scale is wrong."""
    low = torch.full((1, 32), 65504.0).half()
    high = low.clone()
    low[0, 3] = high[0, 3] = torch.inf
    scales = torch.zeros(512, dtype=torch.uint8)
    scales[0], scales[1] = 0x7F, 0x7E  # 65504 / 6 saturates at 448
    act = torch.full((1, 16), 0x77, dtype=torch.uint8)
    allowed = admissible(low, high, None, scales)
    assert not allowed.wrong_scales(scales).any() and not allowed.wrong_codes(act).any()
    act[0, 0], act[0, 8] = 0x12, 0x76
    assert allowed.wrong_codes(act).nonzero().tolist() == [[0, 8]]
    scales[0] = 0x7E
    assert allowed.wrong_scales(scales).nonzero().tolist() == [[0]]


# ------------------------------------------------------------------ rules


@pytest.mark.parametrize(
    ("text", "activation", "rule", "message"),
    [
        ("swap_ab=true", "none", "rows_of_threads", "swap_ab must be false"),
        ("epi_tile_n=16", "none", "subtile", "epi_tile_n must be at least 32, got 16"),
        ("mma_tiler_mn=256x192", "swiglu", "scale_blocks", "N of the tile is 96 columns"),
        ("mma_tiler_mn=256x64", "swiglu", "scale_blocks", "64 columns of y: N of the tile is 32"),
    ],
)
def test_refused(text: str, activation: str, rule: str, message: str) -> None:
    config, problem = KernelConfigSm100a.parse(text), QuantizedGemmProblem.parse("4352,3072,12288,128")
    verdict: Any = legalize(
        config, QuantizedGemmProblem(**{**problem.record(), "activation": activation}), SM100A
    )
    assert isinstance(verdict, Rejection) and verdict.rule == rule and message in verdict.reason, verdict


@pytest.mark.slow
def test_the_default_rule_is_legal_at_its_edges() -> None:
    space = SearchSpace.load(OPERATOR.name, SM100A)
    shapes = ("256,64,128,512", "257,32,8192,512", "2048,12288,8192,512")
    for shape, activation in itertools.product(shapes, ("none", "swiglu")):
        problem = QuantizedGemmProblem.parse(shape, activation=activation)
        assert isinstance(legalize(space.default(problem), problem, SM100A), Legal), problem


def test_the_budget_has_codes_in_place_of_halves() -> None:
    """By hand: 128 rows of 64 columns are 4 KB; 1 / smooth of 192 columns 768 bytes."""
    verdict = legalize(KernelConfigSm100a.parse("mma_tiler_mn=256x192 epi_tile_n=64"), PROBLEM, SM100A)
    assert isinstance(verdict, Legal)
    rows = {name: size for name, size, _ in verdict.budget.footprint.smem}
    assert (rows["C"], rows["1 / next_smooth"], rows["bias"]) == (4096, 768, 768)
