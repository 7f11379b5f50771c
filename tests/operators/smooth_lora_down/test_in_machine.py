"""The kernels executed: ragged shapes, every schedule, races on; ``xs`` to the bit, sums against float64."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
import torch

from kernel_space.build.build import refuse_serialized
from kernel_space.machine.run.schedules import SCHEDULES
from kernel_space.operators.smooth_lora_down.problem import SmoothProblem
from tests.checkered import checkered
from tests.operators.nvfp4_quantize.test_lora_mma_in_machine import every_pattern
from tests.operators.nvfp4_quantize.values import smooth_of
from tests.operators.smooth_lora_down.runs import DTYPES, compiled, right, run
from tests.operators.smooth_lora_down.values import COLUMNS, beside_ties

ROWS = "kernel=smooth_rows rows=8 row_loads=1"
ROWS_EARLY = (
    "kernel=smooth_rows rows=32 threads_per_cta=64 threads_per_row=4 row_loads=2 ctas_per_sm=2 use_pdl=true"
)
ROWS_WIDE = "kernel=smooth_rows rows=4 threads_per_cta=128 threads_per_row=64 row_loads=1"
MMA = "kernel=smooth_mma warps_m=2 ctas_per_sm=1"  # one party
MMA_CLUSTER = (
    "kernel=smooth_mma warps_m=2 warps_k=2 split_k=3 ctas_per_sm=1 num_b_stage=2 prefetch_dist=1 use_pdl=true"
)
MMA_PARTS = "kernel=smooth_mma warps_m=1 warps_k=2 split_k=2 split_r=2 ctas_per_sm=1 use_pdl=true"
MMA_TALL = "kernel=smooth_mma rows_per_warp=32 warps_m=2 split_k=2 ctas_per_sm=1"
TMA = "kernel=smooth_tma tile_m=64"  # one party
TMA_TALL = "kernel=smooth_tma tile_m=136 split_k=2 num_stage=2"  # 17 octets of rows for 8 warps
TMA_NARROW = "kernel=smooth_tma tile_m=8 quant_warps=12 num_stage=2"  # warps with nothing to do
TMA_CLUSTER = "kernel=smooth_tma tile_m=40 quant_warps=4 split_k=3 num_stage=2 ctas_per_sm=2 use_pdl=true"
WITH_LORA = (MMA, MMA_CLUSTER, MMA_TALL, TMA, TMA_TALL, TMA_NARROW, TMA_CLUSTER)
# One of each kernel that is alone on its rows, and R.
EACH = ((ROWS, 0), (MMA, 32), (TMA, 32))


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ("17,96,0", ROWS),
        ("33,160,0", ROWS_EARLY),
        ("1,32,32", MMA_TALL),
        ("33,320,32", MMA_CLUSTER),
        ("17,416,64", MMA_PARTS),
        pytest.param("193,160,16", TMA_TALL, marks=pytest.mark.slow),
        ("133,288,32", TMA_CLUSTER),
    ],
)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ragged_shapes_under_every_schedule(schedule: str, shape: str, text: str) -> None:
    right(SmoothProblem.parse(shape), text, schedule=schedule)


@pytest.mark.parametrize(("m", "k"), [(1, 32), (17, 32), (33, 96), (1, 160), (17, 320)])
@pytest.mark.parametrize("text", [ROWS, ROWS_EARLY, ROWS_WIDE, *WITH_LORA])
def test_edges(m: int, k: int, text: str) -> None:
    """Each with one of the dtypes."""
    x_dtype = ("fp16", "bf16")[(m + k // 32) % 2]
    problem = SmoothProblem(m=m, k=k, r=0 if "smooth_rows" in text else 32, x_dtype=x_dtype)
    right(problem, text, schedule="random")


@pytest.mark.parametrize(
    ("text", "r", "smooth", "x_dtype"),
    checkered([(ROWS_EARLY, 0), (MMA_CLUSTER, 32), (TMA_CLUSTER, 32)], ["fp32", "none"], ["fp16", "bf16"]),
)
@pytest.mark.parametrize("source", ["gaussian", "patterns"])
def test_every_class(text: str, r: int, x_dtype: str, smooth: str, source: str) -> None:
    """With any bits of the dtype, too: NaN stays in its place."""
    problem = SmoothProblem(m=69, k=224, r=r, x_dtype=x_dtype, smooth=smooth)
    right(problem, text, source=source, schedule="random")


@pytest.mark.parametrize(
    ("r", "text"),
    [
        (16, MMA_TALL),
        (128, "kernel=smooth_mma rows_per_warp=32 warps_m=4 split_k=7 ctas_per_sm=2"),
        pytest.param(
            128,
            "kernel=smooth_mma warps_m=1 warps_k=8 split_k=8 split_r=4 ctas_per_sm=1 use_pdl=true",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            256, "kernel=smooth_mma warps_m=1 warps_k=4 split_k=8 ctas_per_sm=1", marks=pytest.mark.slow
        ),
        (16, TMA_NARROW),
        (48, TMA_TALL),
        (128, "kernel=smooth_tma tile_m=112 quant_warps=12 split_k=3"),
        pytest.param(
            128, "kernel=smooth_tma tile_m=64 split_k=8 ctas_per_sm=2 use_pdl=true", marks=pytest.mark.slow
        ),
        (256, "kernel=smooth_tma tile_m=32"),
        pytest.param(368, MMA_PARTS, marks=pytest.mark.slow),
        pytest.param(512, "kernel=smooth_tma tile_m=32 split_k=4", marks=pytest.mark.slow),
    ],
)
def test_ranks_and_defaults(r: int, text: str) -> None:
    refuse_serialized(compiled(text, r))
    right(SmoothProblem(m=67, k=352, r=r), text, schedule="random")


@pytest.mark.slow
@pytest.mark.parametrize("text", [ROWS, ROWS_EARLY, ROWS_WIDE, MMA_PARTS, *WITH_LORA])
def test_several_tiles_both_ways(text: str) -> None:
    right(SmoothProblem(m=300, k=1056, r=0 if "smooth_rows" in text else 32), text, schedule="random")


@pytest.mark.parametrize(
    ("text", "r", "smooth", "x_dtype"), checkered(EACH, ["fp32", "none"], ["fp16", "bf16"])
)
def test_every_pattern_of_16_bits(text: str, r: int, x_dtype: str, smooth: str) -> None:
    problem = SmoothProblem(m=128, k=512, r=r, x_dtype=x_dtype, smooth=smooth)
    inputs = {"x": every_pattern(DTYPES[x_dtype])}
    if smooth == "fp32":
        inputs["smooth"] = smooth_of(512, 3)
    right(problem, text, inputs=inputs, check_races=False)


def no_reciprocal(k: int) -> dict[str, torch.Tensor]:
    """The reciprocal of the last smooth is infinite; columns beyond K may meet it."""
    smooth = torch.ones(k)
    smooth[-2:] = 1e-45
    return {"smooth": smooth}


@pytest.mark.parametrize(("text", "r"), EACH)
def test_columns_beyond_k_are_zeros_where_smooth_has_no_reciprocal(text: str, r: int) -> None:
    problem = SmoothProblem(m=20, k=96, r=r)
    result, tensors, found = run(problem, text, inputs=no_reciprocal(96))
    assert result.ok and all(one.ok for one in found.values())
    assert not tensors["xs"].isfinite().all()
    spans = tensors["xs"].view(20, 2, 8, 4, 2)  # chunk, lane, pair
    assert not spans[:, 1, :, 2:].view(torch.int16).any()


@pytest.mark.parametrize(("text", "r"), [(ROWS_EARLY, 0), (MMA_CLUSTER, 32)])
def test_weights_alone_are_read_before_the_kernel_before_has_ended(text: str, r: int) -> None:
    ptx = compiled(text, r).ptx
    before, after = ptx.split("griddepcontrol.wait")
    assert re.search(r"ld\.global\.v[24]\.(f32|b32)", before)
    assert ("cp.async.bulk.shared::cluster.global" in before) == bool(r)
    assert not re.search(r"cp\.async\.cg|st\.global|prefetch\.global", before)
    if r:  # four words at once are x
        assert "ld.global.v4.b32" not in before
    assert (
        re.search(r"cp\.async\.cg|ld\.global\.v4\.b32", after) and "griddepcontrol.launch_dependents" in after
    )
    assert "griddepcontrol" not in compiled(text.replace("use_pdl=true", "use_pdl=false"), r).ptx


def test_the_warp_that_loads_x_waits_for_the_kernel_before() -> None:
    """And those that write sums: lora_down comes before, x after; 1 / smooth is another warp's, which writes nothing to
    memory. To the L2 x may come before.
    """
    ptx = compiled(TMA_CLUSTER, 32).ptx
    before, after, sums = ptx.split("griddepcontrol.wait")
    assert "cp.async.bulk.shared::cluster.global" in before
    assert "cp.async.bulk.prefetch.tensor" in after and "st.global" not in after and "st.global.b16" in sums
    assert not re.search(r"cp\.async\.bulk\.tensor|st\.global|ld\.global\.v4\.b32", before)
    assert "cp.async.bulk.tensor" in after and "griddepcontrol.launch_dependents" in after
    assert "griddepcontrol" not in compiled(TMA_CLUSTER.replace("use_pdl=true", "use_pdl=false"), 32).ptx


# -- kernels that are wrong --

HALF = r"(cvt\.rn\.f16x2\.f32 %r\d+, )(\S+), (\S+);"


@functools.cache
def is_right_as_it_is(text: str, r: int, smooth: str = "fp32") -> bool:
    """On what ``mutated`` runs."""
    result, found = mutated("ret;", "ret;", text, r, smooth)
    return result.ok and found["xs"].ok and found["lora_act_in"].ok


def mutated(pattern: str, into: str, text: str, r: int, smooth: str = "fp32") -> tuple[Any, dict[str, Any]]:
    """On patterns of fp16 of every magnitude, in rows that are no whole tile."""
    changed, found = re.subn(pattern, into, compiled(text, r, "fp16", smooth).ptx)
    assert found
    problem, inputs = SmoothProblem(m=31, k=480, r=r, smooth=smooth), {}
    inputs["x"] = every_pattern(torch.float16)[:124:4, 16:496].contiguous()
    if smooth == "fp32":
        inputs["smooth"] = smooth_of(480, 3)
    result, _, checks = run(problem, text, inputs=inputs, ptx=changed, schedule="slow_epilogue")
    return result, checks


@pytest.mark.parametrize(("text", "r"), EACH)
@pytest.mark.parametrize(
    ("pattern", "into"),
    [
        (HALF, r"\1\3, \2;"),
        (r"cvt\.rn(\.f16x2\.f32 %r)", r"cvt.rz\1"),
        (r"(shfl\.sync\.bfly\.b32\s+%r\d+, %r\d+, )1,", r"\g<1>2,"),
        (r"(shfl\.sync\.bfly\.b32\s+%r\d+, %r\d+, )2,", r"\g<1>1,"),
    ],
    ids=["pairs exchanged", "cut to 16 bits", "far lane first", "near lane last"],
)
def test_wrong_numbers_are_seen(pattern: str, into: str, text: str, r: int) -> None:
    assert is_right_as_it_is(text, r)
    result, found = mutated(pattern, into, text, r)
    assert result.ok and not found["xs"].ok and found["lora_act_in"].ok


@pytest.mark.parametrize(("text", "r"), EACH)
@pytest.mark.parametrize("x_dtype", ["fp16", "bf16"])
def test_a_product_that_is_cut_is_seen(text: str, r: int, x_dtype: str) -> None:
    """In every column."""
    x, smooth = beside_ties(DTYPES[x_dtype])
    problem = SmoothProblem(m=1, k=COLUMNS, r=r, x_dtype=x_dtype)
    right(problem, text, inputs={"x": x, "smooth": smooth})
    changed, count = re.subn(r"mul\.rn\.f32", "mul.rz.f32", compiled(text, r, x_dtype).ptx)
    assert count
    result, _, found = run(problem, text, inputs={"x": x, "smooth": smooth}, ptx=changed)
    assert result.ok and found["xs"].bad >= COLUMNS // 2


@pytest.mark.parametrize(("text", "r"), EACH)
def test_halves_of_other_words_are_seen_where_nothing_is_smoothed(text: str, r: int) -> None:
    assert is_right_as_it_is(text, r, "none")
    result, found = mutated(r"\b30258\b", "21520", text, r, "none")  # 0x7632, 0x5410
    assert result.ok and not found["xs"].ok and found["lora_act_in"].ok


@pytest.mark.parametrize(("text", "r"), EACH)
def test_rows_beyond_m_are_seen(text: str, r: int) -> None:
    result, _ = mutated(r"@p st\.global\.v4", "st.global.v4", text, r)
    assert not result.ok


@pytest.mark.parametrize("text", [MMA, TMA])
def test_columns_beyond_k_that_are_not_cleared_are_seen(text: str) -> None:
    changed, count = re.subn(r"selp\.b32 (%r\d+), (%r\d+), 0, p;", r"mov.b32 \1, \2;", compiled(text, 32).ptx)
    assert count
    result, _, found = run(SmoothProblem(m=20, k=96, r=32), text, inputs=no_reciprocal(96), ptx=changed)
    assert result.ok and not found["xs"].ok


@pytest.mark.parametrize("text", [MMA_CLUSTER, TMA_CLUSTER])
def test_a_missing_wait_is_seen(text: str) -> None:
    result, _ = mutated(r"barrier\.cluster\.(arrive|wait)[^;]*;", "", text, 32)
    assert not result.ok
