"""``merged_fp8`` executed: y by hand and against float64, ragged shapes, every schedule, races on; its rules and its
shared memory.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernel_space.build.build import build
from kernel_space.check.validate import check_candidate
from kernel_space.core.arch import SM90A
from kernel_space.core.registry import kernel_of
from kernel_space.core.rules import Legal, Rejection
from kernel_space.launch.capture import capture
from kernel_space.machine.run.schedules import SCHEDULES
from tests.operators.svdquant_linear_fp8.runs import (
    BLOCKS,
    COLUMNS,
    OPERATOR,
    PAIR,
    PLAIN,
    STREAM,
    activated_by_hand,
    checked,
    compiled,
    inputs,
    legal,
    merged_by_hand,
    problem,
    sums_by_hand,
    whole,
)


@pytest.mark.parametrize(
    ("text", "shape", "dtype", "activation"),
    [
        (PAIR, "29,224,136,48", "bf16", "none"),
        pytest.param(PLAIN, "37,928,136,16", "bf16", "none", marks=pytest.mark.slow),
        pytest.param(PAIR, "21,352,136,48", "fp16", "gelu_tanh", marks=pytest.mark.slow),
        pytest.param(COLUMNS, "21,352,136,0", "fp16", "silu", marks=pytest.mark.slow),
        pytest.param(PLAIN, "21,352,144,48", "bf16", "swiglu", marks=pytest.mark.slow),
    ],
)
def test_y_is_the_layer_by_hand(text: str, shape: str, dtype: str, activation: str) -> None:
    """Within one rounding to the dtype of y, and what sums in fp32 and merged weights at a tie add to that."""
    sizes = problem(shape, dtype, activation=activation)
    tensors = inputs(sizes)
    y = whole(text, sizes, tensors)
    wanted = activated_by_hand(sums_by_hand(tensors, sizes), activation)
    half_ulp = torch.finfo(y.dtype).eps / 2
    away = (y.double() - wanted).abs()
    assert away.norm() < 0.7 * half_ulp * wanted.norm()
    assert (away <= 1.01 * half_ulp * wanted.abs() + 2e-4 * wanted.abs().mean()).all()


def test_y_is_nearly_the_layer_without_fp8() -> None:
    """Three bits of mantissa on both sides: some 4 % of what each product is, and of their sum no more."""
    sizes = problem("29,224,136,48")
    tensors = inputs(sizes)
    merged = merged_by_hand(tensors, sizes).value * tensors["wpeak"].double()[:, None] / 448
    wanted = tensors["x"].double() @ merged.T * tensors["wcscale"].double() + tensors["bias"].double()
    away = (whole(PAIR, sizes, tensors).double() - wanted).norm() / wanted.norm()
    assert 0.01 < away < 0.05


CASES = [(PAIR, "29,224,136,48", {})]
SLOW_CASES = [
    (STREAM, "5,416,136,48", {}),
    (PLAIN, "5,1056,136,48", {}),
    (STREAM, "37,416,136,48", {}),
    (PLAIN, "37,928,136,16", {}),
    (PLAIN, "1,32,8,0", {}),
    (PAIR, "61,352,264,128", {}),
    (COLUMNS, "61,992,264,32", {"dtype": "fp16"}),
    (BLOCKS, "37,672,520,48", {"dtype": "fp16"}),
    (BLOCKS.replace("256x16", "256x40") + " stream_k=true", "130,416,520,80", {}),
    (PAIR, "61,352,264,48", {"activation": "gelu_tanh"}),
    (COLUMNS, "61,352,264,48", {"activation": "silu", "dtype": "fp16"}),
    (PAIR, "61,352,272,0", {"activation": "swiglu"}),
    (BLOCKS + " epi_tile_n=16", "37,416,272,16", {"activation": "swiglu"}),
    (STREAM + " use_pdl=true", "37,928,144,48", {"activation": "swiglu", "dtype": "fp16"}),
    (PLAIN.replace("merge_chunks=4", "merge_chunks=16"), "18,1120,136,256", {}),
    (PLAIN.replace("merge_chunks=4", "merge_chunks=12"), "18,736,136,512", {}),
    ("kernel=merged_fp8 tile_mnk=128x200x128 cluster_shape_mn=2x1 use_pdl=true", "300,1056,264,128", {}),
]
KEPT_FROM = {"slow_tma"}  # of a warp that polls: it keeps the copies that it waits for from completing


@pytest.mark.parametrize(
    ("text", "shape", "options"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES)],
)
@pytest.mark.parametrize(
    "schedule",
    ["random", *(pytest.param(name, marks=pytest.mark.slow) for name in SCHEDULES if name != "random")],
)
def test_y_is_right(schedule: str, text: str, shape: str, options: dict[str, str]) -> None:
    if schedule in KEPT_FROM and "stream_k=true" in text:
        pytest.skip("a warp that polls keeps the machine's slow copies from completing")
    result = checked(text, problem(shape, **options), schedule=schedule)
    assert result.ok, str(result)


def test_a_cluster_that_ends_far_beyond_m_reads_no_scale_behind_the_workspace() -> None:
    """Its second CTA begins beyond M: scales of its columns are those of no row."""
    text = "kernel=merged_fp8 tile_mnk=64x200x128 consumer_warpgroups=1 cluster_shape_mn=1x2 merge_chunks=2"
    result = checked(text, problem("1,32,8,0"))
    assert result.ok, str(result)


@pytest.mark.parametrize(
    "activation",
    ["gelu_tanh", *(pytest.param(name, marks=pytest.mark.slow) for name in ("silu", "swiglu"))],
)
def test_what_lies_behind_the_scales_does_not_reach_the_last_of_an_odd_number_of_rows(
    activation: str,
) -> None:
    """Activations of two rows share a reciprocal: NaN there, which a card's memory may hold, was the last row's."""
    result = checked(PLAIN, problem("5,32,16,0", activation=activation))
    assert result.ok, str(result)


@pytest.mark.slow
@pytest.mark.parametrize("text", [PAIR, STREAM])
def test_all_that_a_search_checks(text: str) -> None:
    shape = problem("61,352,264,48")
    kernel, config = compiled(text, shape)
    result = check_candidate(kernel, config, shape)
    assert result.ok, str(result)
    assert result.bitwise
    assert (result.runs[0].calls > 1) == config.use_pdl


# -- rules and room --

WIDE = "kernel=merged_fp8 tile_mnk=128x216x128"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (PLAIN.replace("64x16x128", "64x16x64"), "tile_k"),
        (PLAIN.replace("64x16x128", "96x16x128"), "tile_rows"),
        (PLAIN.replace("64x16x128", "64x20x128"), "tile_columns"),
        (PLAIN.replace("consumer_warpgroups=1", "consumer_warpgroups=2"), "consumers"),
        (WIDE.replace("128x216", "128x224"), "accumulators"),
        (WIDE.replace("128x216", "256x112"), "accumulators"),
        (WIDE + " consumer_warpgroups=1", "accumulators"),
        (PAIR.replace("2x1", "2x2"), "cluster_shape"),
        (PLAIN.replace("num_ab_stage=3", "num_ab_stage=1"), "stages"),
        (PLAIN + " epi_tile_n=48", "epi_tile"),
        (PLAIN + " swizzle_size=3", "swizzle"),
        (PLAIN.replace("merge_chunks=4", "merge_chunks=3"), "merge_chunks"),
        (PLAIN.replace("quantize_rows=2", "quantize_rows=3"), "quantize_rows"),
        (PAIR.replace("num_ab_stage=2", "num_ab_stage=16"), "smem_capacity"),
    ],
)
def test_rules(text: str, rule: str) -> None:
    found = legal(text, problem("40,416,80,16", activation="swiglu"))  # in which every knob has an effect
    assert isinstance(found, Rejection) and found.rule == rule, found


@pytest.mark.parametrize("text", [WIDE, WIDE.replace("128x216", "256x104"), PLAIN])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_what_rules_let_pass(text: str, dtype: str) -> None:
    """The widest tiles of each kind, both dtypes: y of fp16 has the range that the caller chose."""
    assert isinstance(legal(text, problem("40,416,80,16", dtype)), Legal)


def test_staging_has_one_spelling_where_y_is_not_gated() -> None:
    spelled = [legal(PLAIN + f" epi_tile_n={columns}", problem("40,416,80,16")) for columns in (0, 16, 64)]
    assert len({found.config for found in spelled if isinstance(found, Legal)}) == 1


@pytest.mark.parametrize(
    ("text", "r", "activation"),
    [
        (PLAIN, 48, "none"),
        pytest.param(STREAM, 0, "none", marks=pytest.mark.slow),
        pytest.param(PAIR, 512, "none", marks=pytest.mark.slow),
        pytest.param(WIDE, 128, "none", marks=pytest.mark.slow),
        pytest.param(BLOCKS, 16, "swiglu", marks=pytest.mark.slow),
    ],
)
def test_the_budget_is_what_both_launches_ask_for(text: str, r: int, activation: str) -> None:
    shape = problem(f"17,672,80,{r}", activation=activation)
    found = legal(text, shape)
    assert isinstance(found, Legal)
    kernel = build(found.config, shape.problem_class, SM90A)
    pointers = {name: 1 << 20 for name in OPERATOR.signature.pointers}
    launches = capture(kernel, *OPERATOR.signature.values(shape, pointers, clusters=2))
    parts: Any = found.budget
    asked = [one.smem_bytes for one in launches]
    first, second = (part.smem_bytes for _, part in parts.parts)
    # Where the first kernel has a ring its barriers, an odd number, are followed by maxima at a multiple of 16 bytes.
    assert asked == [first + (8 if r else 0), second]
    assert max(asked) - found.budget.smem_bytes in (0, 8)


def test_the_room_is_that_of_both_matrices_and_the_scales() -> None:
    """And of what a cluster's columns beyond M would have, for which there is no row; sums and flags of stream-K before
    it, flags zeroed.
    """
    shape = problem("17,672,80,16")

    def room(text: str) -> tuple[int, int]:
        found = legal(text, shape)
        assert isinstance(found, Legal)
        size = kernel_of(found.config, shape).room(found.config, shape)
        return size.size, size.zeroed

    size, zeroed = room(PLAIN)
    merged, x8, scales = 80 * 672, 17 * 672, 17 * 4
    assert zeroed == 0
    assert merged + x8 + scales + 4 * 216 <= size < merged + x8 + scales + 4096
    assert room(COLUMNS)[0] >= merged + x8 + scales + 4 * 2 * 216
    dealt, flags = room(STREAM)
    assert flags >= 144 * 4 * 4
    assert dealt == size + flags + 144 * 64 * 16 * 4
