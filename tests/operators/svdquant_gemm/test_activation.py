"""``activation`` of ``svdquant_gemm``: problems of before stay what they are, and every kernel executed."""

from __future__ import annotations

import dataclasses
import math
import re
import struct

import pytest

from kernel_space.build.build import build
from kernel_space.check.validate import check_candidate
from kernel_space.core.arch import SM100A
from kernel_space.core.errors import InputError
from kernel_space.core.registry import operator
from kernel_space.core.rules import Legal, Rejection, legalize
from kernel_space.operators.svdquant_gemm.operands import make_operands
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.runtime import reference
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tests.operators.svdquant_gemm.candidates import EXPAND, RING, SMALL_M, rejected
from tests.operators.svdquant_gemm.test_sm90a_expand import execute_in_machine

SHALLOW = "num_ab_stage=2 num_dq_stage=3 num_lora_stage=1"
ONE = f"{RING} tile_mnk=64x128x128 consumer_warpgroups=1"
WGMMA = (
    f"{SMALL_M} register_operand=wgt tile_mnk=64x16x128 consumer_warpgroups=1 num_ab_stage=3 num_dq_stage=4"
)


def problem(shape: str, activation: str, dtype: str = "fp16") -> GemmProblem:
    return GemmProblem.parse(shape, lora_dtype=dtype, out_dtype=dtype, activation=activation)


# ------------------------------------------------------------------ the problem


def test_without_one_a_problem_is_what_it_was() -> None:
    plain = GemmProblem.parse("4352,3840,3072,128")
    old = {"m": 4352, "k": 3840, "n": 3072, "r": 128, "lora_dtype": "fp16", "out_dtype": "fp16"}
    assert plain.record() == old and GemmProblem.from_record(old) == plain
    assert GemmProblem.from_record({**old, "activation": "none"}) == plain
    assert str(plain.problem_class) == "r=128 lora_dtype=fp16 out_dtype=fp16"
    assert plain.problem_class.activation == "none"
    assert (plain.slug, plain.options) == ("4352x3840x3072x128", {"lora_dtype": "fp16", "out_dtype": "fp16"})


def test_one_is_part_of_the_problem() -> None:
    found = problem("4352,3840,3072,128", "gelu_tanh")
    assert found.record()["activation"] == "gelu_tanh" and GemmProblem.from_record(found.record()) == found
    assert str(found.problem_class) == "r=128 lora_dtype=fp16 out_dtype=fp16 activation=gelu_tanh"
    assert found.slug == "4352x3840x3072x128-fp16-fp16-gelu_tanh"
    assert found.bucket != GemmProblem.parse("4352,3840,3072,128").bucket


def test_gates_come_in_groups() -> None:
    found = operator("svdquant_gemm").signature.tensors(problem("3,64,48,16", "swiglu"))
    assert (found["wgt"].shape, found["wcscale"].shape, found["y"].shape) == ((48, 32), (48,), (3, 24))
    with pytest.raises(
        InputError, match="N must be a multiple of 16 with activation=swiglu, got 40; use 32 or 48"
    ):
        problem("3,64,40,16", "swiglu")
    with pytest.raises(
        InputError, match="activation must be one of none, gelu_tanh, silu, swiglu, got 'gelu'"
    ):
        problem("3,64,40,16", "gelu")


@pytest.mark.parametrize("activation", ["gelu_tanh", "silu", "swiglu"])
def test_the_torch_reference(activation: str) -> None:
    operands = make_operands(problem("33,160,48,16", activation, "bf16"), seed=0)
    made = reference(operands.tensors(), operands.problem)
    whole = (operands.y.shape, operands.y.dtype)
    assert (made["y"].shape, made["y"].dtype) == whole
    assert dataclasses.replace(operands, y=made["y"]).check().ok


# ------------------------------------------------------------------ kernels

CASES = [
    (f"{EXPAND} tile_mnk=64x24x128 consumer_warpgroups=1 split_k=2", "45,288,80,16", "swiglu", "fp16"),
    (f"{WGMMA} split_k=2", "9,288,72,0", "silu", "fp16"),
]
MORE_CASES = [
    (f"{ONE} register_operand=wgt", "100,96,144,16", "swiglu", "bf16"),
    (f"{ONE} epi_tile_n=32", "100,96,144,0", "swiglu", "fp16"),
    (f"{SMALL_M} tile_mnk=64x8x128 num_dq_stage=0 split_k=2", "7,288,72,16", "gelu_tanh", "fp16"),
    (f"{ONE} epi_tile_n=16", "100,160,144,16", "swiglu", "bf16"),
    (f"{RING} tile_mnk=128x128x128 split_k=2", "150,416,272,16", "swiglu", "fp16"),
    (f"{ONE} register_operand=wgt split_k=2", "100,288,200,0", "gelu_tanh", "bf16"),
    (f"{EXPAND} tile_mnk=128x40x128 cluster_shape_mn=2x1 {SHALLOW}", "100,416,272,0", "swiglu", "bf16"),
    (f"{EXPAND} tile_mnk=64x24x128 consumer_warpgroups=1 stream_k=true", "45,288,80,16", "swiglu", "fp16"),
    (f"{EXPAND} tile_mnk=64x24x128 pingpong=true {SHALLOW}", "60,288,72,16", "gelu_tanh", "bf16"),
    (
        f"{SMALL_M} tile_mnk=64x32x128 register_operand=act consumer_warpgroups=1 num_ab_stage=3",
        "70,288,72,16",
        "gelu_tanh",
        "bf16",
    ),
]


@pytest.mark.parametrize(
    ("text", "shape", "activation", "dtype"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE_CASES)],
)
def test_sm90a_in_the_machine(text: str, shape: str, activation: str, dtype: str) -> None:
    operands = make_operands(problem(shape, activation, dtype), seed=3)
    execute_in_machine(text, operands)
    check = operands.check(split_k=2)
    assert check.ok, check


def test_a_wrong_activation_is_told_from_the_right_one() -> None:
    """SiLU in place of GELU; and the cube's factor off by a thousandth."""
    operands = make_operands(problem("9,96,72,0", "gelu_tanh"), seed=3)
    config = f"{SMALL_M} tile_mnk=64x8x128 num_dq_stage=0"
    factor = -2 * math.log2(math.e) * math.sqrt(2 / math.pi) * 0.044715
    cube, near = ("0f" + struct.pack(">f", value).hex().upper() for value in (factor, factor * 1.001))

    def other(ptx: str) -> str:
        assert ptx.count(cube)
        return ptx.replace(cube, near)

    execute_in_machine(config, operands)
    assert operands.check().ok
    execute_in_machine(config, operands, edit=other)
    assert not operands.check().ok
    execute_in_machine(config, dataclasses.replace(operands, problem=problem("9,96,72,0", "silu")))
    assert not operands.check().ok


SM100A_CASES = [
    ("mma_tiler_mn=128x64 cluster_shape_mn=1x1 epi_tile_n=16", "swiglu", "fp16"),
    ("mma_tiler_mn=256x256 split_k=2", "swiglu", "bf16"),
    ("mma_tiler_mn=256x192 mma_tiler_k=128 lora_schedule=tail", "swiglu", "fp16"),
    ("mma_tiler_mn=128x64 cluster_shape_mn=1x1 split_k=2 swap_ab=true", "silu", "fp16"),
    ("", "gelu_tanh", "bf16"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("text", "activation", "dtype"), SM100A_CASES)
def test_sm100a_in_the_machine(text: str, activation: str, dtype: str) -> None:
    own = problem("453,736,496,64", activation, dtype)
    verdict = legalize(KernelConfigSm100a.parse(text), own, SM100A)
    assert isinstance(verdict, Legal), verdict
    found = check_candidate(build(verdict.config, own.problem_class, SM100A), verdict.config, own)
    assert str(found.status) == "OK", found


def test_sm100a_special_functions() -> None:
    """Three for two elements, and fewer than ten other instructions for one: what the formula says by hand."""
    own = problem("453,736,496,64", "gelu_tanh")
    verdict = legalize(KernelConfigSm100a.parse("epi_tile_n=32"), own, SM100A)
    assert isinstance(verdict, Legal), verdict
    ptx = build(verdict.config, own.problem_class, SM100A).ptx
    counts = {
        name: len(re.findall(rf"\b{name}\b", ptx)) for name in ("ex2.approx.ftz.f32", "rcp.approx.ftz.f32")
    }
    assert counts == {"ex2.approx.ftz.f32": 32, "rcp.approx.ftz.f32": 16}


# ------------------------------------------------------------------ rules


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{SMALL_M} tile_mnk=64x16x128", "activation=swiglu needs sm90a_ring or sm90a_expand"),
        (f"{RING} tile_mnk=256x104x128", "whole groups of 16 columns of the tile, got 104"),
    ],
)
def test_refused_on_sm90a(text: str, message: str) -> None:
    verdict = rejected(text, problem("64,3840,3072,128", "swiglu"))
    assert (verdict.rule, message in verdict.reason) == ("activation", True), verdict


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("swap_ab=true", "needs swap_ab=false"),
        (
            "mma_tiler_mn=128x64 cluster_shape_mn=1x1 epi_tile_n=64",
            "divide N of the tile, 64, got epi_tile_n=64",
        ),
    ],
)
def test_refused_on_sm100a(text: str, message: str) -> None:
    config = KernelConfigSm100a.parse(text)
    verdict = legalize(config, problem("4352,3840,3072,128", "swiglu"), SM100A)
    assert isinstance(verdict, Rejection)
    assert (verdict.rule, message in verdict.reason) == ("activation", True), verdict
    assert isinstance(legalize(config, problem("4352,3840,3072,128", "gelu_tanh"), SM100A), Legal)
