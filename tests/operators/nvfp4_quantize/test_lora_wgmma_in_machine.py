"""``lora_wgmma`` executed: ragged shapes, every schedule, races on; codes to the bit, sums against float64."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from kernel_space.build.build import refuse_serialized
from kernel_space.machine.run.schedules import SCHEDULES
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem
from tests.operators.nvfp4_quantize.runs import compiled, exported, with_lora
from tests.operators.nvfp4_quantize.test_lora_mma_in_machine import every_pattern
from tests.operators.nvfp4_quantize.values import DTYPES, smooth_of

ARCH = "sm_90a"
KERNEL = "kernel=lora_wgmma "
ALONE = KERNEL + "groups_m=1"  # one party
TALL = KERNEL + "groups_m=3 split_k=2 num_x_stage=1"
TURNS = KERNEL + "groups_m=1 groups_k=4 num_b_stage=1 num_x_stage=1"
CLUSTER = KERNEL + "groups_m=2 groups_k=2 split_k=3 num_b_stage=2 num_x_stage=3 use_pdl=true"


def check(shape: str, text: str, source: str = "gaussian", **options: str) -> None:
    x_dtype, smooth = options.pop("x_dtype", "fp16"), options.pop("smooth", "fp32")
    problem = QuantizeProblem.parse(shape, x_dtype=x_dtype, smooth=smooth)
    result, found = with_lora(problem, ARCH, text, source=source, **options)
    assert result.ok, str(result)
    assert all(one.ok for one in found.values()), {name: str(one) for name, one in found.items()}


@pytest.mark.parametrize(
    ("shape", "text"),
    [("1,32,32", TURNS), ("133,288,32", CLUSTER), ("65,416,64", ALONE), ("193,160,16", TALL)],
)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ragged_shapes_under_every_schedule(schedule: str, shape: str, text: str) -> None:
    check(shape, text, schedule=schedule)


@pytest.mark.parametrize("x_dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("smooth", ["fp32", "none"])
@pytest.mark.parametrize("source", ["gaussian", "patterns"])
def test_every_class(x_dtype: str, smooth: str, source: str) -> None:
    """With any bits of the dtype, too: NaN stays in its row."""
    check("69,224,32", CLUSTER, source, x_dtype=x_dtype, smooth=smooth, schedule="random")


@pytest.mark.parametrize(
    ("r", "text"),
    [
        (16, TURNS),
        (48, TALL),
        (128, "groups_m=4 split_k=7 num_x_stage=3"),
        (128, "groups_m=1 split_k=7 ctas_per_sm=4 use_pdl=true"),
        (128, "groups_m=1 groups_k=4 split_k=8"),
        (256, "groups_m=2 split_k=7"),
        (256, "groups_m=1 groups_k=2 split_k=8"),
    ],
)
def test_ranks_and_defaults(r: int, text: str) -> None:
    text = KERNEL + text.removeprefix(KERNEL)
    refuse_serialized(compiled(text, "fp16", True, ARCH, r))
    check(f"131,352,{r}", text, schedule="random")


@pytest.mark.slow
@pytest.mark.parametrize("text", [ALONE, TALL, TURNS, CLUSTER])
def test_several_blocks_of_scales_both_ways(text: str) -> None:
    check("300,1056,32", text, schedule="random")


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
    result, found = with_lora(problem, ARCH, ALONE, inputs={"smooth": smooth})
    assert result.ok and all(one.ok for one in found.values()), {
        name: str(one) for name, one in found.items()
    }


# -- kernels that are wrong --


def mutated(pattern: str, into: str, text: str) -> tuple[Any, dict[str, Any]]:
    changed, found = re.subn(pattern, into, exported(text, "fp16", True, ARCH, 32).ptx)
    assert found
    problem = QuantizeProblem.parse("133,512,32")
    return with_lora(problem, ARCH, text, ptx=changed, schedule="slow_epilogue")


@pytest.mark.parametrize(
    ("pattern", "into", "output"),
    [
        (r"max\.NaN\.f32 (\S+) s, t", r"min.NaN.f32 \1 s, t", "ascales"),
        (r"fma\.rn\.f32 b, s, 0f41000000", "fma.rn.f32 b, s, 0f41800000", "act"),
        (r"(cvt\.rn\.f16x2\.f32 w, )(\S+), (\S+);", r"\1\3, \2;", "lora_act_in"),
    ],
    ids=["the smallest of a block", "a step of E2M1", "columns exchanged"],
)
def test_wrong_numbers_are_seen(pattern: str, into: str, output: str) -> None:
    _, right = mutated("ld.shared", "ld.shared", ALONE)
    result, found = mutated(pattern, into, ALONE)
    assert right[output].ok and result.ok and not found[output].ok


@pytest.mark.parametrize(
    ("pattern", "into", "text"),
    [
        (r"wgmma\.wait_group\.sync\.aligned\s+0;", "", ALONE),
        (r"(mbarrier\.init[^;]*;\s+mov\.b32\s+%r\d+, )4;", r"\g<1>1;", ALONE + " num_b_stage=1"),
        (r"barrier\.cluster\.(arrive|wait)[^;]*;", "", CLUSTER),
    ],
    ids=[
        "nobody waits for wgmma",
        "a slot is given back by one of four warps",
        "nobody waits for the cluster",
    ],
)
def test_missing_waits_are_seen(pattern: str, into: str, text: str) -> None:
    result, _ = mutated(pattern, into, text)
    assert not result.ok


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_x_is_waited_for_before_lanes_read_what_others_copied(slots: int) -> None:
    """In the machine ``cp.async`` completes at issue, and lanes of a warp are in step: read here from the code."""
    ptx = compiled(f"{ALONE} num_x_stage={slots}", "fp16", True, ARCH, 32).ptx
    waits = (
        r"cp\.async\.wait_group \t?(\d+);\s+bar\.warp\.sync \t?-1;.*?ld\.shared\.v4\.b32.*?wgmma\.mma_async"
    )
    assert re.findall(waits, ptx, re.DOTALL) == [str(slots - 1)]
    assert re.search(
        r"wgmma\.commit_group\.sync\.aligned;\s+bar\.warp\.sync \t?-1;.*?cp\.async\.cg", ptx, re.DOTALL
    )
    assert len(re.findall(r"cp\.async\.commit_group", ptx)) == slots + 1
