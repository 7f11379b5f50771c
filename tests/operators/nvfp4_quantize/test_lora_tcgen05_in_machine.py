"""``lora_tcgen05`` executed: ragged shapes, every schedule, races on; codes to the bit, sums against float64."""

from __future__ import annotations

import re

import pytest
import torch

from kernel_space.machine.run.schedules import SCHEDULES
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem
from tests.operators.nvfp4_quantize.runs import exported, with_lora
from tests.operators.nvfp4_quantize.test_lora_mma_in_machine import every_pattern
from tests.operators.nvfp4_quantize.values import DTYPES, smooth_of

ARCH = "sm_100a"
KERNEL = "kernel=lora_tcgen05 "
ALONE = KERNEL + "tile_m=64"  # sums to global memory at once
TALL = KERNEL + "tile_m=144 split_k=2 num_stage=2"  # 9 pairs of octets for 8 warps
NARROW = KERNEL + "tile_m=16 quant_warps=12 num_stage=2"  # warps with nothing to do
CLUSTER = KERNEL + "tile_m=48 quant_warps=4 split_k=3 num_stage=2 ctas_per_sm=2 use_pdl=true"


def check(shape: str, text: str, source: str = "gaussian", **options: str) -> None:
    x_dtype, smooth = options.pop("x_dtype", "fp16"), options.pop("smooth", "fp32")
    problem = QuantizeProblem.parse(shape, x_dtype=x_dtype, smooth=smooth)
    result, found = with_lora(problem, ARCH, text, source=source, **options)
    assert result.ok, str(result)
    assert all(one.ok for one in found.values()), {name: str(one) for name, one in found.items()}


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ("1,32,32", NARROW),
        ("133,288,32", CLUSTER),
        pytest.param("65,416,64", ALONE, marks=pytest.mark.slow),
        pytest.param("193,160,16", TALL, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ragged_shapes_under_every_schedule(schedule: str, shape: str, text: str) -> None:
    check(shape, text, schedule=schedule)


@pytest.mark.parametrize(
    ("x_dtype", "smooth", "source"),
    [
        ("bf16", "fp32", "patterns"),
        pytest.param("fp16", "none", "patterns", marks=pytest.mark.slow),
        pytest.param("bf16", "none", "gaussian", marks=pytest.mark.slow),
        pytest.param("fp16", "fp32", "gaussian", marks=pytest.mark.slow),
    ],
)
def test_every_class(x_dtype: str, smooth: str, source: str) -> None:
    """With any bits of the dtype, too: NaN stays in its row."""
    check("69,224,32", CLUSTER, source, x_dtype=x_dtype, smooth=smooth, schedule="random")


def test_a_part_of_k_may_be_empty() -> None:
    """One chunk for three CTAs: the others' sums are zeros, and tensor memory that nobody wrote is not read."""
    check("40,64,16", CLUSTER, schedule="random")


@pytest.mark.parametrize(
    ("r", "text"),
    [
        pytest.param(16, TALL, marks=pytest.mark.slow),
        pytest.param(144, "tile_m=32", marks=pytest.mark.slow),  # two instructions, zeros behind
        pytest.param(128, "tile_m=96 quant_warps=16 split_k=3 use_pdl=true", marks=pytest.mark.slow),
        pytest.param(256, "tile_m=64 quant_warps=16 split_k=2", marks=pytest.mark.slow),
        pytest.param(512, "tile_m=32 split_k=2", marks=pytest.mark.slow),
    ],
)
def test_ranks_and_defaults(r: int, text: str) -> None:
    check(f"131,352,{r}", KERNEL + text.removeprefix(KERNEL), schedule="random")


@pytest.mark.slow
@pytest.mark.parametrize("text", [ALONE, TALL, NARROW, CLUSTER])
def test_several_blocks_of_scales_both_ways(text: str) -> None:
    check("300,1056,32", text, schedule="random")


@pytest.mark.slow
@pytest.mark.parametrize("x_dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("smooth", ["fp32", "none"])
def test_every_pattern_of_16_bits(x_dtype: str, smooth: str) -> None:
    problem = QuantizeProblem.parse("128,512,16", x_dtype=x_dtype, smooth=smooth)
    inputs = {"x": every_pattern(DTYPES[x_dtype])}
    if smooth == "fp32":
        inputs["smooth"] = smooth_of(512, 3)
    result, found = with_lora(problem, ARCH, ALONE, inputs=inputs, check_races=False)
    assert result.ok and all(one.ok for one in found.values()), {
        name: str(one) for name, one in found.items()
    }


def test_padding_has_no_scale_where_smooth_has_no_reciprocal() -> None:
    """The reciprocal of the last smooth is infinite; columns beyond K and rows beyond M, which meet it, stay zeros."""
    problem = QuantizeProblem.parse("70,96,16")
    smooth = torch.ones(96)
    smooth[-2:] = 1e-45
    result, found = with_lora(problem, ARCH, NARROW, inputs={"smooth": smooth})
    assert result.ok and all(one.ok for one in found.values()), {
        name: str(one) for name, one in found.items()
    }


# -- kernels that are wrong --


@pytest.mark.parametrize(
    ("pattern", "into", "finding"),
    [
        (r"fence\.proxy\.async\.shared::cta;", "", "races"),
        (r"barrier\.cluster\.arrive;\s*barrier\.cluster\.wait;", "barrier.cluster.arrive;", "races"),
        (r"st\.shared::cluster\.f32 \[(\S+)\], (\S+);", r"st.shared::cluster.f32 [\1+4], \2;", "lora_act_in"),
        (r"tcgen05\.wait::ld\.sync\.aligned;", "", "races"),
    ],
    ids=[
        "the next copy beside the last loads",
        "no wait for the others' sums",
        "columns exchanged",
        "no wait for sums that a warp beyond R does not use",
    ],
)
def test_a_kernel_that_is_wrong_is_seen(pattern: str, into: str, finding: str) -> None:
    text, problem = CLUSTER, QuantizeProblem.parse("133,288,32")
    changed, count = re.subn(pattern, into, exported(text, "fp16", True, ARCH, 32).ptx)
    assert count
    result, found = with_lora(problem, ARCH, text, ptx=changed, schedule="slow_epilogue")
    if finding == "races":
        assert not result.ok, "nothing was found"
    else:
        assert not result.ok or not found[finding].ok
