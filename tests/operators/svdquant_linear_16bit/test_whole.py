"""``whole`` executed: both kinds of CTAs, ragged shapes, every schedule, races on; who waits for whom, by breaking
it.
"""

from __future__ import annotations

import pytest

from kernel_space.core.rules import Rejection
from kernel_space.machine.run.schedules import SCHEDULES
from tests.operators.svdquant_linear_16bit import one_launch
from tests.operators.svdquant_linear_16bit.runs import legal, problem

FEW = "kernel=whole tile_mnk=32x8x128"
SHARED = "kernel=whole tile_mnk=64x16x128 split_k=2 num_ab_stage=2 num_dq_stage=1 use_pdl=true"
PLAIN = "kernel=whole tile_mnk=128x32x128 consumer_warpgroups=2 num_ab_stage=3 dequant_ahead=0 split_k=3"


CASES = [(FEW, "3,416,40,16", "bf16"), (SHARED, "17,672,72,48", "fp16")]
SLOW_CASES = [
    (FEW, "1,32,8,0", "fp16"),
    (FEW, "30,1184,136,272", "bf16"),
    (SHARED, "33,1376,136,128", "bf16"),
    (PLAIN, "40,672,264,128", "fp16"),
    ("kernel=whole tile_mnk=32x16x128 split_k=8 use_pdl=true", "16,3840,64,128", "fp16"),
    ("kernel=whole tile_mnk=64x8x128 ctas_per_sm=2 split_k=5 consumer_warpgroups=2", "30,416,136,48", "bf16"),
    ("kernel=whole tile_mnk=64x64x128 num_ab_stage=6 num_dq_stage=1", "70,416,72,32", "bf16"),
]


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES)],
)
@pytest.mark.parametrize(
    "schedule",
    ["random", *(pytest.param(name, marks=pytest.mark.slow) for name in SCHEDULES if name != "random")],
)
def test_both_outputs_are_right(schedule: str, text: str, shape: str, dtype: str) -> None:
    one_launch.both_outputs_are_right(text, problem(shape, dtype), schedule)


def test_y_is_the_layer_by_hand() -> None:
    one_launch.y_is_the_layer_by_hand(FEW)


def test_an_activation() -> None:
    one_launch.an_activation_is_right(SHARED)


def test_what_a_check_runs_on_is_legal() -> None:
    one_launch.what_a_check_runs_on_is_legal(SHARED)


def test_bytes_that_nobody_writes_are_not_compared() -> None:
    one_launch.bytes_that_nobody_writes_are_not_compared(FEW)


@pytest.mark.slow
def test_three_calls_that_overlap() -> None:
    one_launch.three_calls_overlap(SHARED)


@pytest.mark.parametrize(
    ("text", "shape", "rule"),
    [
        ("kernel=whole tile_mnk=32x32x128 num_ab_stage=2", "40,416,72,16", "down"),
        ("kernel=whole tile_mnk=32x8x128", "33,416,72,16", "tile_columns"),
        ("kernel=whole tile_mnk=32x8x128 ctas_per_sm=5", "3,416,72,16", "ctas_per_sm"),
    ],
)
def test_rules(text: str, shape: str, rule: str) -> None:
    found = legal(text, problem(shape))
    assert isinstance(found, Rejection) and found.rule == rule


def test_slots_of_weights_hold_a_unit_of_x() -> None:
    """What the rule ``down`` counts with, against what the kernel allocates."""
    from kernel_space.operators.svdquant_gemm_16bit.narrow.layouts import XS_ROW
    from kernel_space.operators.svdquant_linear_16bit.whole.layouts import SLOT_BYTES
    from kernel_space.operators.svdquant_linear_16bit.whole.rules import SLOT_COLUMNS

    assert SLOT_BYTES // XS_ROW == SLOT_COLUMNS


@pytest.mark.parametrize("text", [pytest.param(FEW, marks=pytest.mark.slow), SHARED])
def test_the_budget_is_what_the_launch_asks_for(text: str) -> None:
    one_launch.the_budget_is_what_the_launch_asks_for(text.replace("32x8x128", "32x16x128"))


# -- kernels that are wrong --


@pytest.mark.parametrize(
    ("pattern", "into"),
    [
        (r"and\.b32 (%r\d+), s, u;", r"mov.b32 \1, 1;"),
        pytest.param(
            r"st\.relaxed\.gpu(\.global\.v2\.b64 \[[^]]*\], \{a, b\})", r"st\1", marks=pytest.mark.slow
        ),
        (r"ld\.relaxed\.gpu(\.global\.v2\.b64)", r"ld\1"),
        pytest.param(r"st\.relaxed\.gpu\.global\.v2\.b64 \[[^]]*\], \{a, a\};", "", marks=pytest.mark.slow),
    ],
    ids=["nobody waits for pairs", "a weak store", "a weak load", "nobody clears the pairs"],
)
def test_columns_that_are_not_handed_over_are_seen(pattern: str, into: str) -> None:
    assert not all(one_launch.mutated(SHARED, pattern, into))
