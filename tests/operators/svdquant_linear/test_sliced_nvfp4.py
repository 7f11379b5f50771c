"""``sliced_nvfp4`` executed: x to the values of its codes, y and lora_act_in against float64, ragged shapes, every
schedule, races on; parts whose CTA does not come; who waits for whom, by breaking it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernel_space.core.rules import Legal, Rejection
from kernel_space.machine.run.schedules import SCHEDULES
from tests.operators.svdquant_linear import one_launch
from tests.operators.svdquant_linear.runs import DTYPES, is_the_layer, launched, problem
from tests.operators.svdquant_linear_16bit.runs import legal

FEW = "kernel=sliced_nvfp4 tile_mnk=8x24x128 consumer_warpgroups=1 num_ab_stage=4"
SHARED = f"{FEW.replace('8x24', '16x40').replace('stage=4', 'stage=8')} slot_warps=1 split_k=2 use_pdl=true"
WIDE = "kernel=sliced_nvfp4 tile_mnk=16x96x128 num_ab_stage=8 down_columns=32 use_pdl=true"


@pytest.mark.slow
@pytest.mark.parametrize(("text", "dtype"), [(FEW, "bf16"), (SHARED, "fp16")])
def test_y_is_the_layer_by_hand(text: str, dtype: str) -> None:
    one_launch.y_is_the_layer_by_hand(text, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_x_is_the_values_of_its_codes(dtype: str) -> None:
    one_launch.x_is_the_values_of_its_codes(FEW, dtype)


@pytest.mark.slow
def test_smooth_whose_reciprocal_is_divided_for() -> None:
    one_launch.smooth_is_divided_for(FEW)


@pytest.mark.parametrize("value", [torch.nan, pytest.param(torch.inf, marks=pytest.mark.slow)])
def test_what_is_no_number_makes_its_rows_none(value: float) -> None:
    one_launch.what_is_no_number_makes_its_rows_none(SHARED, problem("13,416,136,0"), value)


@pytest.mark.parametrize("schedule", ["random", pytest.param("eager", marks=pytest.mark.slow)])
def test_parts_whose_cta_does_not_come_are_taken(schedule: str) -> None:
    """Two SMs where the launch is told of eight clusters, as when another launch has the others: whoever runs takes
    the parts of those who wait for a place, or nobody would ever end.
    """
    shape = problem("30,672,136,0")
    tensors = launched(SHARED, shape, sms=2, clusters=8, schedule=schedule)
    is_the_layer(tensors, shape)


CASES = [(FEW, "3,416,40,16", "bf16"), (SHARED, "17,672,72,48", "fp16")]
SLOW_CASES = [
    (FEW, "1,32,8,0", "fp16"),
    (FEW, "30,1184,136,272", "bf16"),
    (SHARED, "33,736,136,128", "bf16"),
    (WIDE, "13,3840,200,128", "bf16"),
    ("kernel=sliced_nvfp4 tile_mnk=32x56x128 num_ab_stage=8 split_k=3 use_pdl=true", "40,736,136,128", "fp16"),
    (f"{WIDE.replace('16x96', '16x64')} ctas_per_sm=2 split_k=2", "16,3840,64,128", "bf16"),
    ("kernel=sliced_nvfp4 tile_mnk=8x128x128 consumer_warpgroups=4 slot_warps=1 split_k=8", "30,4128,136,48", "bf16"),
]  # fmt: skip


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
        (f"{FEW} quantize_parts=129", "3,416,72,16", "parts"),
        (f"{FEW} quantize_parts=0", "3,416,72,16", "parts"),
        ("kernel=sliced_nvfp4 tile_mnk=8x96x128", "33,416,72,16", "tile"),
        ("kernel=sliced_nvfp4 tile_mnk=16x96x128 ctas_per_sm=2", "3,416,72,16", "registers"),
        # With smooth in its slots, as in ``sliced``, 12 would have room for these sums.
        ("kernel=sliced_nvfp4 tile_mnk=32x64x128 consumer_warpgroups=3 num_ab_stage=6", "32,3840,3072,0", "stages"),
    ],
)  # fmt: skip
def test_rules(text: str, shape: str, rule: str) -> None:
    found = legal(text, problem(shape))
    assert isinstance(found, Rejection) and found.rule == rule, found


@pytest.mark.parametrize(("text", "r"), [(FEW, 0), (SHARED, 48)])
def test_the_budget_is_what_the_launch_asks_for(text: str, r: int) -> None:
    one_launch.the_budget_is_what_the_launch_asks_for(text, r)


@pytest.mark.parametrize("text", [FEW, SHARED, WIDE])
def test_sums_lie_where_slots_have_been(text: str) -> None:
    """The room that the rule counts with is there in what the kernel allocates: what comes behind stays as it is."""
    found = legal(text, problem("30,3840,264,128"))
    assert isinstance(found, Legal), found
    config: Any = found.config
    sizes = {name: size for name, size, ring in found.budget.footprint.smem if ring == "ab"}
    assert "smooth" not in sizes
    assert config.sums_room <= config.num_ab_stage * sum(sizes[name] for name in ("x", "packed", "scales"))
    assert config.sums_bytes(128) <= config.sums_room


# -- kernels that are wrong --


@pytest.mark.parametrize(
    ("pattern", "into"),
    [
        (r"fence\.proxy\.async\.global;", ""),
        (r"and\.b32 (%r\d+), s, u;", r"mov.b32 \1, 1;"),
        pytest.param(r"atom\.global\.release\.add", "atom.global.relaxed.add", marks=pytest.mark.slow),
        pytest.param(r"ld\.acquire\.gpu", "ld.relaxed.gpu", marks=pytest.mark.slow),
        pytest.param(r"griddepcontrol\.wait;", "", marks=pytest.mark.slow),
        pytest.param(r"barrier\.sync\s+6,[^;]*;|bar\.sync\s+6,[^;]*;", "", marks=pytest.mark.slow),
    ],
    ids=[
        "x not fenced",
        "nobody waits for pairs",
        "stores after the count",
        "count not acquired",
        "nobody waits",
        "part not whole",
    ],
)
def test_a_broken_kernel_is_seen(pattern: str, into: str) -> None:
    one_launch.a_broken_kernel_is_seen(SHARED, problem("17,672,72,48"), pattern, into, sms=16)
