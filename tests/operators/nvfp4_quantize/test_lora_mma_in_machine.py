"""``lora_mma`` executed: ragged shapes, every schedule, races on; codes to the bit, sums against float64."""

from __future__ import annotations

import re

import pytest

from kernel_space.machine.run.schedules import SCHEDULES
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem
from tests.operators.nvfp4_quantize.runs import ARCHS, exported, with_lora

ALONE = "warps_m=2 ctas_per_sm=1"  # one party
WARPS = "warps_m=1 warps_k=4 ctas_per_sm=1 num_b_stage=1"
CLUSTER = "warps_m=2 warps_k=2 split_k=3 ctas_per_sm=1 num_b_stage=2 use_pdl=true"
PARTS = "warps_m=1 warps_k=2 split_k=2 split_r=2 ctas_per_sm=1 use_pdl=true"
TALL = "rows_per_warp=32 warps_m=2 split_k=2 ctas_per_sm=1"


def check(shape: str, arch: str, text: str, source: str = "gaussian", **options: str) -> None:
    x_dtype, smooth = options.pop("x_dtype", "fp16"), options.pop("smooth", "fp32")
    problem = QuantizeProblem.parse(shape, x_dtype=x_dtype, smooth=smooth)
    result, found = with_lora(problem, arch, text, source=source, **options)
    assert result.ok, str(result)
    assert all(one.ok for one in found.values()), {name: str(one) for name, one in found.items()}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("shape", "text"), [("1,32,32", WARPS), ("65,288,32", CLUSTER), ("37,416,64", PARTS), ("33,160,16", TALL)]
)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ragged_shapes_under_every_schedule(schedule: str, shape: str, text: str, arch: str) -> None:
    check(shape, arch, text, schedule=schedule)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("x_dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("smooth", ["fp32", "none"])
@pytest.mark.parametrize("source", ["gaussian", "patterns"])
def test_every_class(arch: str, x_dtype: str, smooth: str, source: str) -> None:
    """With any bits of the dtype, too: NaN stays in its row."""
    check("69,224,32", arch, CLUSTER, source, x_dtype=x_dtype, smooth=smooth, schedule="random")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("r", "text"),
    [
        (16, WARPS),
        (48, TALL),
        (128, "rows_per_warp=32 warps_m=4 split_k=7 ctas_per_sm=2"),
        (128, "warps_m=1 warps_k=8 split_k=8 split_r=4 ctas_per_sm=1 use_pdl=true"),
        (256, "warps_m=4 split_k=4 ctas_per_sm=2"),
        (256, "warps_m=1 warps_k=4 split_k=8 ctas_per_sm=1"),
    ],
)
def test_ranks_and_defaults(r: int, text: str, arch: str) -> None:
    check(f"131,352,{r}", arch, text, schedule="random")


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("text", [ALONE, WARPS, CLUSTER, PARTS, TALL])
def test_several_blocks_of_scales_both_ways(text: str, arch: str) -> None:
    check("300,1056,32", arch, text, schedule="random")


# -- kernels that are wrong --

PROBLEM = QuantizeProblem.parse("33,416,32")


def mutated(pattern: str, into: str, count: int = 0) -> tuple[object, dict[str, object]]:
    text = exported(CLUSTER, "fp16", True, "sm_90a", 32).ptx
    changed, found = re.subn(pattern, into, text, count=count)
    assert found
    return with_lora(PROBLEM, "sm_90a", CLUSTER, ptx=changed, schedule="random")


@pytest.mark.parametrize(
    ("pattern", "into", "outputs"),
    [
        (r"fma\.rn\.f32 b, s, 0f41000000", "fma.rn.f32 b, s, 0f41000001", {"act"}),
        (r"mul\.rn\.sat\.f32", "mul.rz.sat.f32", {"act"}),
        (r"0x3E2AAAAB|1042983595", "1042983594", {"ascales"}),
        (r"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared", "ldmatrix.sync.aligned.m8n8.x4.trans.shared", {"lora_act_in"}),
    ],
    ids=["a step of E2M1", "a product is cut off", "1/6 is off by its last bit", "lora_down transposed"],
)
def test_wrong_numbers_are_seen(pattern: str, into: str, outputs: set[str]) -> None:
    result, found = mutated(pattern, into)
    assert not result.ok or any(not found[name].ok for name in outputs), str(result)


@pytest.mark.parametrize(
    "pattern",
    [r"barrier\.cluster\.(arrive|wait)[^;]*;", r"bar\.warp\.sync[^;]*;"],
    ids=["nobody waits for the cluster", "lanes do not wait for 1 / smooth"],
)
def test_missing_barriers_are_races(pattern: str) -> None:
    result, _ = mutated(pattern, "")
    assert not result.ok and "race" in str(result).lower()
