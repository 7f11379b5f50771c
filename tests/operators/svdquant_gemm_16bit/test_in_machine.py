"""``wide`` executed: ragged shapes, every schedule, races on; weights to the bit, sums against float64."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
import torch

from kernel_space.machine.run.schedules import SCHEDULES
from kernel_space.numerics.quad_order import SPAN
from kernel_space.operators.svdquant_gemm_16bit.problem import HalfGemmProblem
from tests.numerics.nvfp4_oracle import blocked_offset, e2m1_value, e4m3_value
from tests.operators.svdquant_gemm_16bit.runs import DTYPES, ptx_of, right, run

SHALLOW = "num_ab_stage=2 num_dq_stage=2 num_lora_stage=1"
PLAIN = "tile_mnk=128x32x128"
ALONE = "tile_mnk=64x40x128 consumer_warpgroups=1"
CLUSTER = f"tile_mnk=128x24x128 cluster_shape_mn=2x1 {SHALLOW}"


def problem(shape: str, dtype: str = "bf16") -> HalfGemmProblem:
    return HalfGemmProblem.parse(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        (PLAIN, "1,32,8,0", "fp16"),
        (PLAIN, "33,160,136,16", "bf16"),
        (f"{ALONE} split_k=2 use_pdl=true", "33,416,136,0", "bf16"),
        (f"{ALONE} stream_k=true use_pdl=true", "130,416,136,16", "fp16"),
        (CLUSTER, "33,96,136,128", "fp16"),
    ],
)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ragged_shapes_under_every_schedule(schedule: str, text: str, shape: str, dtype: str) -> None:
    right(text, problem(shape, dtype), schedule=schedule)


@pytest.mark.slow
@pytest.mark.parametrize("r", [272, 512])
@pytest.mark.parametrize("text", [PLAIN, f"{ALONE} stream_k=true use_pdl=true", CLUSTER])
def test_ranks_above_256(text: str, r: int) -> None:
    right(text, problem(f"33,160,136,{r}"))


EDGES = [(1, 96, 8, 16), (33, 32, 136, 0), (130, 160, 8, 128)]


@pytest.mark.parametrize(("m", "k", "n", "r"), [*EDGES[:2], pytest.param(*EDGES[2], marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        "tile_mnk=256x16x128 wgmma_k=32",
        "tile_mnk=128x16x128 consumer_warpgroups=1",  # two blocks of 64 rows a warpgroup
        "tile_mnk=128x40x128 raster_order=n swizzle_size=2 epi_tile_n=16",
        f"{ALONE} stream_k=true wgmma_k=32",
        f"{ALONE} split_k=2 use_pdl=true",
        "tile_mnk=128x24x128 cluster_shape_mn=2x1 use_pdl=true",
    ],
)
def test_edges(text: str, m: int, k: int, n: int, r: int) -> None:
    """Each with one of the dtypes."""
    edge(text, m, k, n, r)


def test_an_edge_of_several_tiles_of_rows() -> None:
    edge("tile_mnk=256x16x128 wgmma_k=32", *EDGES[2])


def edge(text: str, m: int, k: int, n: int, r: int) -> None:
    k += 256 if "split_k" in text else 0  # a k-tile each
    right(text, problem(f"{m},{k},{n},{r}", ("fp16", "bf16")[(m + k // 32) % 2]))


@pytest.mark.parametrize(
    ("text", "activation", "dtype"),
    [
        (f"{ALONE} split_k=2", "swiglu", "bf16"),
        pytest.param(CLUSTER, "gelu_tanh", "fp16", marks=pytest.mark.slow),
    ],
)
def test_activations(text: str, activation: str, dtype: str) -> None:
    own = HalfGemmProblem.parse("33,416,144,16", dtype=dtype, activation=activation)
    right(text, own, source="gaussian")


@pytest.mark.slow
@pytest.mark.parametrize("text", [PLAIN, f"{ALONE} stream_k=true", CLUSTER])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_several_tiles_both_ways(text: str, dtype: str) -> None:
    right(text, problem("130,672,520,128", dtype), schedule="slow_tma", clusters=3)


# -- weights to the bit --


def weights_as_y(k: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Inputs whose y.T is the weights ``[136, k]`` themselves, and y: every code with every scale, rows of xs that
    are one 1 each, where the operator's order has it: element 16 t + 8 w + i + 4 e of 64 at place
    8 (4 w + 2 (i mod 2) + i div 2) + 2 t + e.
    """
    n, groups = 136, k // 16
    codes = torch.arange(16).roll(3).repeat(n, groups)
    scales = (torch.arange(n * groups).view(n, groups) * 5) % 0x7F
    wgt = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
    wscales = torch.zeros(256 // 128 * -(-groups // 4) * 512, dtype=torch.uint8)
    for row in range(n):
        for group in range(groups):
            wscales[blocked_offset(row, group, groups)] = scales[row, group]
    xs = torch.zeros(k, -(-k // SPAN) * SPAN)
    for column in range(k):
        t, w, e, i = column % 64 // 16, column % 16 // 8, column % 8 // 4, column % 4
        xs[column, column // 64 * 64 + 8 * (4 * w + 2 * (i % 2) + i // 2) + 2 * t + e] = 1.0
    value = torch.tensor([float(e2m1_value(code)) for code in range(16)])
    scale = torch.tensor([float(e4m3_value(byte)) for byte in range(0x7F)])
    y = (value[codes] * scale[scales].repeat_interleave(16, dim=1)).T
    ones = {"wcscale": torch.ones(n), "bias": torch.zeros(n)}
    return {"xs": xs, "wgt": wgt, "wscales": wscales, **ones}, y


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("text", [PLAIN, "tile_mnk=256x16x128 wgmma_k=32", f"{ALONE} stream_k=true"])
def test_every_code_with_every_scale_arrives_unrounded(text: str, dtype: str) -> None:
    """816 blocks of all 16 codes; xs picks one weight of each row."""
    inputs, wanted = weights_as_y(96)
    inputs["xs"] = inputs["xs"].to(DTYPES[dtype])
    result, y, found = run(text, problem("96,96,136,0", dtype), inputs=inputs)
    assert result.ok and found.ok
    assert torch.equal(y.float(), wanted)


# -- kernels that are wrong --

PAIR = r"mul\.rn\.bf16x2 (%r\d+), t, (%r\d+);"
WEIGHTS = problem("96,96,136,0")


def mutated(pattern: str, into: str, text: str, shape: HalfGemmProblem, **options: Any) -> tuple[Any, ...]:
    changed, count = re.subn(pattern, into, ptx_of(text, shape), flags=re.DOTALL)
    assert count
    return run(text, shape, ptx=changed, **options)


@functools.cache
def is_right_as_it_is(text: str, shape: HalfGemmProblem, clusters: int = 2) -> bool:
    result, _, found = run(text, shape, clusters=clusters)
    return result.ok and found.ok


@pytest.mark.parametrize(
    ("pattern", "into"),
    [
        (f"{PAIR}(.{{,200}}?){PAIR}", r"mul.rn.bf16x2 \4, t, \2;\3mul.rn.bf16x2 \1, t, \5;"),
        (r"0x4140;", "0x4041;"),
        (r"prmt\.b32 (%r\d+), (%r\d+), 0, 0x3232;", r"prmt.b32 \1, \2, 0, 0x1010;"),
        (r"and\.b32 t, t, 0x01C001C0;", "and.b32 t, t, 0x01800180;"),
        (r"lop3\.b32 t, u, 0x80008000", "lop3.b32 t, u, 0x00008000"),
        (r"mov\.b32 second, 0x7B007B00;", "mov.b32 second, 0x7B807B80;"),
    ],
    ids=[
        "two pairs exchanged",
        "scales of two spans exchanged",
        "one scale for both spans",
        "the last bit of a code lost",
        "a sign lost",
        "a factor of two",
    ],
)
def test_wrong_weights_are_seen(pattern: str, into: str) -> None:
    """By the comparison with float64 on ordinary inputs, too."""
    result, _, found = mutated(pattern, into, PLAIN, WEIGHTS)
    assert result.ok and not found.ok
    assert is_right_as_it_is(PLAIN, WEIGHTS)


@pytest.mark.parametrize(
    ("pattern", "into", "text"),
    [
        (r"wgmma\.wait_group\.sync\.aligned\s+\d;", "", PLAIN),
        (r"(mov\.b32\s+%r\d+, )8(;\s+mbarrier\.init)", r"\g<1>7\2", f"{PLAIN} num_ab_stage=2 num_dq_stage=2"),
        (r"(mov\.b32\s+%r\d+, )8(;\s+mbarrier\.init)", r"\g<1>9\2", f"{PLAIN} num_ab_stage=2 num_dq_stage=2"),
        (r"barrier\.cluster\.(arrive|wait)[^;]*;", "", CLUSTER),
    ],
    ids=[
        "nobody waits for wgmma",
        "a slot is given back by seven of eight warps",
        "a slot waits for a ninth warp",
        "nobody waits for the cluster",
    ],
)
@pytest.mark.parametrize("schedule", ["slow_epilogue"])
def test_missing_waits_are_seen(pattern: str, into: str, text: str, schedule: str) -> None:
    result, _, _ = mutated(pattern, into, text, problem("33,672,264,16"), schedule=schedule)
    assert not result.ok


@pytest.mark.parametrize(
    ("knob", "pattern", "into"),
    [
        ("stream_k=true", r"st\.release\.gpu\.global", "st.relaxed.gpu.global"),
        pytest.param(
            "stream_k=true", r"ld\.acquire\.gpu\.global", "ld.relaxed.gpu.global", marks=pytest.mark.slow
        ),
        (
            "split_k=2",
            r"atom\.global\.acq_rel\.add\.u32\s+(%r\d+), (\S+), 1;",
            r"atom.global.acq_rel.add.u32 \1, \2, 2;",
        ),
    ],
    ids=["a flag releases nothing", "a flag acquires nothing", "a counter of other steps"],
)
def test_parts_that_are_not_handed_over_are_seen(knob: str, pattern: str, into: str) -> None:
    text, shape = f"{ALONE} {knob}", problem("45,672,72,0")
    assert is_right_as_it_is(text, shape, clusters=5)
    result, _, found = mutated(pattern, into, text, shape, clusters=5)
    assert not (result.ok and found.ok)
