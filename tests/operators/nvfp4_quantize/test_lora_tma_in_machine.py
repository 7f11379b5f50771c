"""``lora_tma`` executed: ragged shapes, every schedule, races on; codes to the bit, sums against float64."""

from __future__ import annotations

import functools
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
KERNEL = "kernel=lora_tma "
ALONE = KERNEL + "tile_m=64"  # one party
TALL = KERNEL + "tile_m=136 split_k=2 num_stage=2"  # 17 octets of rows for 8 warps, three at once
NARROW = KERNEL + "tile_m=8 quant_warps=12 turns=2 num_stage=2"  # warps with nothing to do
CLUSTER = KERNEL + "tile_m=40 quant_warps=4 turns=2 split_k=3 num_stage=2 ctas_per_sm=2 use_pdl=true"
TURNS = KERNEL + "tile_m=8 quant_warps=4 turns=4 split_k=2 num_stage=4 use_pdl=true"  # a warp a chunk


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
        ("20,704,32", TURNS),
        pytest.param("65,416,64", ALONE, marks=pytest.mark.slow),
        pytest.param("193,160,16", TALL, marks=pytest.mark.slow),
    ],
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
        (16, NARROW),
        (48, TALL),
        pytest.param(128, "tile_m=136 split_k=4", marks=pytest.mark.slow),
        pytest.param(128, "tile_m=64 split_k=8 ctas_per_sm=2 use_pdl=true", marks=pytest.mark.slow),
        (128, "tile_m=112 quant_warps=12 split_k=3"),
        (256, "tile_m=32"),
        pytest.param(256, "tile_m=64 split_k=8", marks=pytest.mark.slow),
        pytest.param(272, "tile_m=64 split_k=2", marks=pytest.mark.slow),
        pytest.param(384, "tile_m=32 split_k=4", marks=pytest.mark.slow),
        pytest.param(512, "tile_m=32 split_k=8", marks=pytest.mark.slow),
    ],
)
def test_ranks_and_defaults(r: int, text: str) -> None:
    text = KERNEL + text.removeprefix(KERNEL)
    refuse_serialized(compiled(text, "fp16", True, ARCH, r))
    check(f"131,352,{r}", text, schedule="random")


DEALT = [
    # (tile_m, split_k, R): octets of rows times wgmma of columns, dealt out to fewer, as many or more CTAs
    (16, 2, 48), (24, 3, 16), (16, 4, 128), (8, 2, 128), (32, 4, 64), (32, 8, 128), (8, 3, 144),
    (8, 8, 64), (16, 3, 64), (16, 8, 128), (24, 7, 128), (8, 5, 256),
    (24, 2, 64), (40, 4, 128), (48, 5, 128), (72, 2, 128), (112, 3, 128), (40, 6, 48), (64, 7, 64), (24, 2, 192),
]  # fmt: skip


@pytest.mark.parametrize(
    ("tile_m", "split_k", "r"),
    [*DEALT[:3], *(pytest.param(*case, marks=pytest.mark.slow) for case in DEALT[3:])],
)
def test_sums_are_dealt_out(tile_m: int, split_k: int, r: int) -> None:
    """Each vector has one owner, who has all of its parts."""
    quantizers = "quant_warps=12 turns=3" if tile_m > 64 else "quant_warps=4 turns=2"
    text = f"{KERNEL}tile_m={tile_m} {quantizers} split_k={split_k}"
    check(f"{2 * tile_m - 3},{64 * split_k + 96},{r}", text, schedule="eager")


@pytest.mark.slow
@pytest.mark.parametrize("text", [ALONE, TALL, NARROW, CLUSTER])
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
    changed, found = re.subn(pattern, into, exported(text, "fp16", True, ARCH, 32).ptx, flags=re.DOTALL)
    assert found
    problem = QuantizeProblem.parse("133,512,32")
    return with_lora(problem, ARCH, text, ptx=changed, schedule="slow_epilogue")


@functools.cache
def as_it_is(text: str) -> dict[str, Any]:
    """How each output of the kernel itself compares on what ``mutated`` runs."""
    return mutated("ld.shared", "ld.shared", text)[1]


@pytest.mark.parametrize(
    ("pattern", "into", "output"),
    [
        (r"max\.NaN\.f32 (\S+) s, t", r"min.NaN.f32 \1 s, t", "ascales"),
        (r"fma\.rn\.f32 b, s, 0f41000000", "fma.rn.f32 b, s, 0f41800000", "act"),
        (r"(@p st\.global\.b16 \[\S+\], )u;", r"\1v;", "lora_act_in"),
        (r"(st\.async\S+ \[\S+\], \{)(\S+), (\S+),", r"\1\3, \2,", "lora_act_in"),
    ],
    ids=["the smallest of a block", "a step of E2M1", "a row twice", "rows exchanged on their way"],
)
def test_wrong_numbers_are_seen(pattern: str, into: str, output: str) -> None:
    text = CLUSTER if "async" in pattern else ALONE
    result, found = mutated(pattern, into, text)
    assert as_it_is(text)[output].ok and result.ok and not found[output].ok


@pytest.mark.parametrize(
    ("pattern", "into", "text"),
    [
        (r"wgmma\.wait_group\.sync\.aligned\s+0;", "", ALONE),
        (r"(mov\.b32\s+%r\d+, )12(;\s+mbarrier\.init)", r"\g<1>11\2", ALONE + " num_stage=2"),
        (r"(mov\.b32\s+%r\d+, )2(;\s+mbarrier\.init)", r"\g<1>1\2", ALONE),
        (r"barrier\.cluster\.(arrive|wait)[^;]*;", "", CLUSTER),
        (r"mbarrier\.init\.shared\.b64\s+[^;]+;(?!.*mbarrier\.init)", "", CLUSTER),
        (
            r"(mbarrier\.arrive)\.expect_tx(\.shared\.b64\s+\S+, \[\S+\]), \S+;(?!.*expect_tx)",
            r"\1\2;",
            CLUSTER,
        ),
    ],
    ids=[
        "nobody waits for wgmma",
        "a slot is given back by eleven of twelve warps",
        "a slot is full without 1 / smooth",
        "nobody waits for the cluster",
        "a barrier of the sums is not there",
        "nobody waits for the others' sums",
    ],
)
def test_missing_waits_are_seen(pattern: str, into: str, text: str) -> None:
    result, _ = mutated(pattern, into, text)
    assert not result.ok
