"""``whole_nvfp4`` executed: x to the values of its codes, y and lora_act_in against float64, ragged shapes, every
schedule, races on; lora_act_in from one kind of CTAs to the other, by breaking it.
"""

from __future__ import annotations

import pytest
import torch

from kernel_space.core.rules import Rejection
from kernel_space.machine.run.schedules import SCHEDULES
from tests.operators.svdquant_linear import one_launch
from tests.operators.svdquant_linear.runs import DTYPES, problem
from tests.operators.svdquant_linear_16bit.runs import legal

FEW = "kernel=whole_nvfp4 tile_mnk=32x8x128"
SHARED = "kernel=whole_nvfp4 tile_mnk=64x16x128 split_k=2 num_ab_stage=2 num_dq_stage=1 use_pdl=true"
PLAIN = (
    "kernel=whole_nvfp4 tile_mnk=128x32x128 consumer_warpgroups=2 num_ab_stage=3 dequant_ahead=0 split_k=3"
)


@pytest.mark.slow
@pytest.mark.parametrize(("text", "dtype"), [(FEW, "bf16"), (SHARED, "fp16")])
def test_y_is_the_layer_by_hand(text: str, dtype: str) -> None:
    one_launch.y_is_the_layer_by_hand(text, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("text", [FEW, pytest.param(PLAIN, marks=pytest.mark.slow)])
def test_x_is_the_values_of_its_codes(text: str, dtype: str) -> None:
    one_launch.x_is_the_values_of_its_codes(text, dtype)


def test_smooth_whose_reciprocal_is_divided_for() -> None:
    one_launch.smooth_is_divided_for(FEW)


@pytest.mark.parametrize("value", [torch.nan, pytest.param(torch.inf, marks=pytest.mark.slow)])
def test_what_is_no_number_makes_its_rows_none(value: float) -> None:
    one_launch.what_is_no_number_makes_its_rows_none(SHARED, problem("13,416,136,0"), value)


CASES = [(FEW, "3,416,40,16", "bf16")]
SLOW_CASES = [
    (SHARED, "17,672,72,48", "fp16"),
    (FEW, "1,32,8,0", "fp16"),
    (FEW, "30,1184,136,272", "bf16"),
    (SHARED, "33,1376,136,128", "bf16"),
    (PLAIN, "40,672,264,128", "fp16"),
    ("kernel=whole_nvfp4 tile_mnk=64x8x128 ctas_per_sm=4 split_k=8 use_pdl=true", "1,3840,64,128", "bf16"),
    (
        "kernel=whole_nvfp4 tile_mnk=64x8x128 ctas_per_sm=2 split_k=5 consumer_warpgroups=2",
        "30,416,136,48",
        "bf16",
    ),
]


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES)],
)
@pytest.mark.parametrize(
    "schedule",
    ["random", *(pytest.param(name, marks=pytest.mark.slow) for name in SCHEDULES if name != "random")],
)
def test_y_is_right(schedule: str, text: str, shape: str, dtype: str) -> None:
    one_launch.y_is_right(text, problem(shape, dtype), schedule)


@pytest.mark.slow
def test_an_activation() -> None:
    one_launch.y_is_right(SHARED, problem("9,416,72,16", activation="gelu_tanh"))


@pytest.mark.slow
def test_it_ends_where_not_all_clusters_are_there_at_once() -> None:
    one_launch.it_ends_on_fewer_sms(SHARED, problem("9,416,136,16"), sms=2)


def test_what_a_check_runs_on_is_legal() -> None:
    one_launch.what_a_check_runs_on_is_legal(SHARED)


@pytest.mark.slow
def test_all_that_a_search_checks() -> None:
    one_launch.all_that_a_search_checks_is_right(SHARED, problem("9,416,136,16"))


@pytest.mark.parametrize(
    ("text", "shape", "rule"),
    [
        ("kernel=whole_nvfp4 tile_mnk=32x32x128 num_ab_stage=2", "40,416,72,16", "down"),
        ("kernel=whole_nvfp4 tile_mnk=32x8x128", "33,416,72,16", "tile_columns"),
        ("kernel=whole_nvfp4 tile_mnk=32x8x128 ctas_per_sm=5", "3,416,72,16", "ctas_per_sm"),
    ],
)
def test_rules(text: str, shape: str, rule: str) -> None:
    found = legal(text, problem(shape))
    assert isinstance(found, Rejection) and found.rule == rule


@pytest.mark.parametrize("r", [48, 0])
def test_the_budget_is_what_the_launch_asks_for(r: int) -> None:
    one_launch.the_budget_is_what_the_launch_asks_for(SHARED, r)


# -- kernels that are wrong --


@pytest.mark.parametrize(
    ("pattern", "into"),
    [
        pytest.param(r"and\.b32 (%r\d+), s, u;", r"mov.b32 \1, 1;", marks=pytest.mark.slow),
        pytest.param(
            r"st\.relaxed\.gpu(\.global\.v2\.b64 \[[^]]*\], \{a, b\})", r"st\1", marks=pytest.mark.slow
        ),
        pytest.param(r"st\.relaxed\.gpu\.global\.v2\.b64 \[[^]]*\], \{a, a\};", "", marks=pytest.mark.slow),
        (r"shfl\.sync\.bfly\.b32", "shfl.sync.idx.b32"),
    ],
    ids=["nobody waits for pairs", "a weak store", "nobody clears the pairs", "half a block for itself"],
)
def test_a_broken_kernel_is_seen(pattern: str, into: str) -> None:
    one_launch.a_broken_kernel_is_seen(SHARED, problem("5,416,72,48"), pattern, into, sms=16)
