"""``lora_mma`` executed: ragged shapes, every schedule, races on; codes to the bit, sums against float64."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
import torch

from kernel_space.machine.run.schedules import SCHEDULES
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem
from tests.checkered import checkered
from tests.operators.nvfp4_quantize.runs import ARCHS, exported, with_lora
from tests.operators.nvfp4_quantize.values import DTYPES, smooth_of

ALONE = "warps_m=2 ctas_per_sm=1"  # one party
WARPS = "warps_m=1 warps_k=4 ctas_per_sm=1 num_b_stage=1"
CLUSTER = "warps_m=2 warps_k=2 split_k=3 ctas_per_sm=1 num_b_stage=2 prefetch_dist=1 use_pdl=true"
PARTS = "warps_m=1 warps_k=2 split_k=2 split_r=2 ctas_per_sm=1 use_pdl=true"
TALL = "rows_per_warp=32 warps_m=2 split_k=2 ctas_per_sm=1"


def check(shape: str, arch: str, text: str, source: str = "gaussian", **options: str) -> None:
    x_dtype, smooth = options.pop("x_dtype", "fp16"), options.pop("smooth", "fp32")
    problem = QuantizeProblem.parse(shape, x_dtype=x_dtype, smooth=smooth)
    result, found = with_lora(problem, arch, text, source=source, **options)
    assert result.ok, str(result)
    assert all(one.ok for one in found.values()), {name: str(one) for name, one in found.items()}


@pytest.mark.parametrize(
    ("shape", "text", "arch"),
    checkered([("1,32,32", WARPS), ("65,288,32", CLUSTER), ("37,416,64", PARTS), ("33,160,16", TALL)], ARCHS),
)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ragged_shapes_under_every_schedule(schedule: str, shape: str, text: str, arch: str) -> None:
    check(shape, arch, text, schedule=schedule)


@pytest.mark.parametrize(("smooth", "x_dtype", "arch"), checkered(["fp32", "none"], ["fp16", "bf16"], ARCHS))
@pytest.mark.parametrize("source", ["gaussian", "patterns"])
def test_every_class(arch: str, x_dtype: str, smooth: str, source: str) -> None:
    """With any bits of the dtype, too: NaN stays in its row."""
    check("69,224,32", arch, CLUSTER, source, x_dtype=x_dtype, smooth=smooth, schedule="random")


@pytest.mark.parametrize(
    ("r", "text", "arch"),
    [
        *((16, WARPS, arch) for arch in ARCHS),
        *((48, TALL, arch) for arch in ARCHS),
        *checkered(
            [
                (256, "warps_m=4 split_k=4 ctas_per_sm=2"),
                (128, "rows_per_warp=32 warps_m=4 split_k=7 ctas_per_sm=2"),
            ],
            ARCHS,
        ),
        *(
            pytest.param(r, text, arch, marks=pytest.mark.slow)
            for r, text in (
                (128, "warps_m=1 warps_k=8 split_k=8 split_r=4 ctas_per_sm=1 use_pdl=true"),
                (256, "warps_m=1 warps_k=4 split_k=8 ctas_per_sm=1"),
            )
            for arch in ARCHS
        ),
    ],
)
def test_ranks_and_defaults(r: int, text: str, arch: str) -> None:
    check(f"131,352,{r}", arch, text, schedule="random")


@pytest.mark.parametrize("arch", ARCHS)
def test_parts_of_r_that_are_not_equal(arch: str) -> None:
    """48 columns for two CTAs of 32: the second begins at 16 and leaves 16 to 31 to the first."""
    check("37,160,48", arch, "warps_m=1 warps_k=2 split_r=2 ctas_per_sm=1", schedule="random")


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("r", "text"),
    [
        (272, "warps_m=1 warps_k=4 split_k=8 split_r=2 ctas_per_sm=1"),
        (320, "warps_m=1 warps_k=4 ctas_per_sm=1"),
        (368, "warps_m=1 warps_k=4 split_k=8 split_r=2 ctas_per_sm=1"),
        (496, "warps_m=4 split_k=4 split_r=2 ctas_per_sm=2"),
        (512, "warps_m=1 warps_k=4 split_k=8 split_r=2 ctas_per_sm=1"),
    ],
)
def test_ranks_above_256(r: int, text: str, arch: str) -> None:
    check(f"37,352,{r}", arch, text, schedule="random")


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("text", [ALONE, WARPS, CLUSTER, PARTS, TALL])
def test_several_blocks_of_scales_both_ways(text: str, arch: str) -> None:
    check("300,1056,32", arch, text, schedule="random")


def every_pattern(dtype: torch.dtype) -> torch.Tensor:
    """In order of magnitude, so that those of a block have one scale: NaN and infinities are by themselves."""
    order = torch.arange(1 << 15).repeat_interleave(2)
    order[1::2] += 1 << 15
    return (order - (order >> 15 << 16)).to(torch.int16).view(dtype).view(-1, 512)


@pytest.mark.parametrize(("smooth", "x_dtype", "arch"), checkered(["fp32", "none"], ["fp16", "bf16"], ARCHS))
def test_every_pattern_of_16_bits(x_dtype: str, smooth: str, arch: str) -> None:
    problem = QuantizeProblem.parse("128,512,16", x_dtype=x_dtype, smooth=smooth)
    inputs = {"x": every_pattern(DTYPES[x_dtype])}
    if smooth == "fp32":
        inputs["smooth"] = smooth_of(512, 3)
    result, found = with_lora(problem, arch, ALONE, inputs=inputs, check_races=False)
    assert result.ok and all(one.ok for one in found.values()), {
        name: str(one) for name, one in found.items()
    }


# -- kernels that are wrong --


def mutated(pattern: str, into: str, text: str) -> tuple[Any, dict[str, Any]]:
    """On every pattern of fp16, where a block's ratios lie on all ties of codes and scales."""
    changed, found = re.subn(pattern, into, exported(text, "fp16", True, "sm_90a", 32).ptx)
    assert found
    problem, inputs = QuantizeProblem.parse("128,512,32"), {"x": every_pattern(torch.float16)}
    inputs["smooth"] = torch.exp2(torch.arange(512) % 16 - 8.0)
    return with_lora(problem, "sm_90a", text, inputs=inputs, ptx=changed, schedule="slow_epilogue")


@functools.cache
def as_it_is(text: str) -> dict[str, Any]:
    """How each output of the kernel itself compares on what ``mutated`` runs."""
    return mutated(r"mma\.sync", "mma.sync", text)[1]


@pytest.mark.parametrize(
    ("pattern", "into", "output"),
    [
        (r"fma\.rn\.f32 b, s, 0f41000000", "fma.rn.f32 b, s, 0f41000001", "act"),
        ("1042983595", "1042983590", "ascales"),
        (r"(mma\.sync\S+ \{[^}]*\}, \{)(\S+), (\S+), ", r"\1\3, \2, ", "lora_act_in"),
    ],
    ids=["a step of E2M1", "1/6 is off in its last bits", "columns of lora_down exchanged"],
)
def test_wrong_numbers_are_seen(pattern: str, into: str, output: str) -> None:
    result, found = mutated(pattern, into, ALONE)
    assert as_it_is(ALONE)[output].ok and result.ok and not found[output].ok


@pytest.mark.parametrize(
    ("pattern", "into", "text"),
    [
        (r"barrier\.cluster\.(arrive|wait)[^;]*;", "", CLUSTER),
        (r"(mov\.b32\s+%r68, )2;", r"\g<1>1;", "warps_m=2 ctas_per_sm=1 num_b_stage=1"),
    ],
    ids=["nobody waits for the cluster", "a slot is given back by one of two warps"],
)
def test_missing_waits_are_seen(pattern: str, into: str, text: str) -> None:
    result, _ = mutated(pattern, into, text)
    assert not result.ok
