"""``narrow`` executed: few rows, ragged shapes, every schedule, races on; weights to the bit, sums against float64."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from kernel_space.build.build import build
from kernel_space.check.validate import check_candidate
from kernel_space.core.arch import SM90A
from kernel_space.machine.run.schedules import SCHEDULES
from kernel_space.operators.svdquant_gemm_16bit.problem import HalfGemmProblem
from tests.operators.svdquant_gemm_16bit.runs import DTYPES, legal, ptx_of, right, run
from tests.operators.svdquant_gemm_16bit.test_in_machine import weights_as_y

NARROW = "kernel=narrow"
FEW = f"{NARROW} tile_mnk=32x8x128"  # four warps along K, no other warp's xs
SHARED = f"{NARROW} tile_mnk=64x16x128 split_k=3 num_ab_stage=2 num_dq_stage=1 use_pdl=true"
PLAIN = f"{NARROW} tile_mnk=128x32x128 consumer_warpgroups=2 dequant_ahead=0 split_k=2"
MANY = f"{NARROW} tile_mnk=128x64x128 consumer_warpgroups=2 use_pdl=true num_dq_stage=1"


def problem(shape: str, dtype: str = "bf16") -> HalfGemmProblem:
    return HalfGemmProblem.parse(shape, dtype=dtype)


# M 1, 3, 8, 16, 17, 33, 64, 100; K that ends within a unit, a span, a lane's quarter; warps and CTAs without K; rings
# that go round; all ranks.
CASES = [
    (FEW, "3,1184,40,16", "bf16"),
    (SHARED, "17,864,72,32", "fp16"),
]
SLOW_CASES = [
    (FEW, "1,32,8,0", "fp16"),
    (SHARED, "17,1120,136,32", "bf16"),
    (PLAIN, "33,672,264,128", "fp16"),
    (FEW, "8,96,40,256", "bf16"),
    (f"{NARROW} tile_mnk=32x16x128 split_k=8 use_pdl=true", "16,3840,64,128", "fp16"),
    (f"{NARROW} tile_mnk=32x16x128 consumer_warpgroups=4 dequant_ahead=0", "16,2592,200,128", "bf16"),
    (f"{NARROW} tile_mnk=64x8x128 ctas_per_sm=4 split_k=5", "30,416,136,48", "fp16"),
    (f"{NARROW} tile_mnk=128x16x128", "16,672,392,256", "fp16"),
    (f"{NARROW} tile_mnk=32x32x128 num_ab_stage=3 num_dq_stage=2", "100,1120,40,112", "fp16"),
    (MANY, "64,1376,264,32", "fp16"),
    (MANY, "100,1056,136,256", "bf16"),
]


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES)],
)
@pytest.mark.parametrize(
    "schedule",
    ["random", *(pytest.param(name, marks=pytest.mark.slow) for name in SCHEDULES if name != "random")],
)
def test_ragged_shapes_under_every_schedule(schedule: str, text: str, shape: str, dtype: str) -> None:
    right(text, problem(shape, dtype), schedule=schedule)


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        (FEW.replace("x8x", "x32x"), "bf16"),
        *(pytest.param(PLAIN, dtype, marks=pytest.mark.slow) for dtype in ("bf16", "fp16")),
        *(pytest.param(MANY, dtype, marks=pytest.mark.slow) for dtype in ("bf16", "fp16")),
    ],
)
def test_every_code_with_every_scale_arrives_unrounded(text: str, dtype: str) -> None:
    """816 blocks of all 16 codes; xs picks one weight of each row."""
    inputs, wanted = weights_as_y(96)
    inputs["xs"] = inputs["xs"].to(DTYPES[dtype])
    result, y, found = run(text, problem("96,96,136,0", dtype), inputs=inputs)
    assert result.ok and found.ok
    assert torch.equal(y.float(), wanted)


def test_an_activation() -> None:
    own = HalfGemmProblem.parse("9,416,72,16", dtype="bf16", activation="gelu_tanh")
    right(SHARED, own, source="gaussian")


@pytest.mark.slow
@pytest.mark.parametrize("text", [SHARED, f"{FEW} use_pdl=true"])
def test_three_calls_that_overlap(text: str) -> None:
    """With ``use_pdl`` the check runs several calls in a row: y and xs are what the call before may still use."""
    shape = problem("9,416,136,16")
    config = legal(text, shape).config
    result = check_candidate(build(config, shape.problem_class, SM90A), config, shape)
    assert result.ok, str(result)
    assert result.runs[0].calls == 3


# -- kernels that are wrong --


def mutated(pattern: str, into: str, text: str, shape: HalfGemmProblem, **options: Any) -> tuple[Any, ...]:
    changed, count = re.subn(pattern, into, ptx_of(text, shape), flags=re.DOTALL)
    assert count
    return run(text, shape, ptx=changed, **options)


@pytest.mark.parametrize(
    ("pattern", "into"),
    [
        (r"and\.b32 v, v, 0x81C081C0;", "and.b32 v, v, 0x81808180;"),
        (r"mul\.lo\.u32 v, v, 0x1040;", "mul.lo.u32 v, v, 0x0840;"),
        (r"prmt\.b32 (%r\d+), (%r\d+), 0, 0x3232;", r"prmt.b32 \1, \2, 0, 0x1010;"),
        (r"(ldmatrix[^{]*\{)(%r\d+), (%r\d+)", r"\1\3, \2"),
        (r"0f43000000", "0f42800000"),
    ],
    ids=[
        "the last bit of a code lost",
        "a sign from another bit",
        "one scale for both spans",
        "two chunks of xs exchanged",
        "a factor of two before LoRA",
    ],
)
def test_wrong_numbers_are_seen(pattern: str, into: str) -> None:
    result, _, found = mutated(pattern, into, FEW, problem("8,416,40,16"))
    assert result.ok and not found.ok


@pytest.mark.parametrize(
    ("pattern", "into"),
    [(r"bar(rier)?\.sync(\.aligned)?\s+%r[^;]*;", ""), (r"barrier\.cluster\.(arrive|wait)[^;]*;", "")],
    ids=["nobody meets the warps that share slots", "nobody waits for the cluster"],
)
def test_missing_waits_are_seen(pattern: str, into: str) -> None:
    result, _, _ = mutated(pattern, into, SHARED, problem("17,416,40,16"))
    assert not result.ok
