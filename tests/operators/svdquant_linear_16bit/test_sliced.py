"""``sliced`` executed: both kinds of CTAs, ragged shapes, every schedule, races on; who waits for whom, by breaking
it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernel_space.core.rules import Legal, Rejection
from kernel_space.machine.run.schedules import SCHEDULES
from tests.operators.svdquant_linear_16bit import one_launch
from tests.operators.svdquant_linear_16bit.runs import compiled, legal, problem, run

FEW = "kernel=sliced tile_mnk=8x24x128 consumer_warpgroups=1 num_ab_stage=4"
SHARED = "kernel=sliced tile_mnk=16x40x128 consumer_warpgroups=1 slot_warps=1 num_ab_stage=8 split_k=2 use_pdl=true"
WIDE = "kernel=sliced tile_mnk=16x96x128 num_ab_stage=8 down_columns=32 use_pdl=true"

CASES = [(FEW, "3,416,40,16", "bf16"), (SHARED, "17,672,72,48", "fp16")]
SLOW_CASES = [
    (FEW, "1,32,8,0", "fp16"),
    (FEW, "30,1184,136,272", "bf16"),
    (SHARED, "33,1376,136,128", "bf16"),
    (WIDE, "13,3840,200,128", "bf16"),
    ("kernel=sliced tile_mnk=32x56x128 num_ab_stage=8 split_k=3 use_pdl=true", "40,1376,264,128", "fp16"),
    ("kernel=sliced tile_mnk=16x64x128 ctas_per_sm=2 num_ab_stage=8 split_k=2 use_pdl=true", "16,3840,64,128", "bf16"),
    ("kernel=sliced tile_mnk=8x128x128 consumer_warpgroups=4 slot_warps=1 split_k=8", "30,4128,136,48", "bf16"),
]  # fmt: skip


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


def test_y_is_that_of_whole_but_for_the_order_of_its_sums() -> None:
    """Another kernel with the same contract: x over smooth is rounded once, so results differ by sums in fp32 alone."""
    shape = problem("7,416,40,16")
    whole = run("kernel=whole tile_mnk=32x8x128", shape)[1]
    sliced = run(FEW, shape)[1]
    for name in ("lora_act_in", "y"):
        equal = (whole[name] == sliced[name]).double().mean()
        assert equal > 0.95, name
        assert torch.allclose(whole[name].double(), sliced[name].double(), rtol=2**-6, atol=0.05)


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
        ("kernel=sliced tile_mnk=64x96x128", "40,416,72,16", "tile"),
        ("kernel=sliced tile_mnk=8x96x128", "33,416,72,16", "tile"),
        ("kernel=sliced tile_mnk=8x96x64", "3,416,72,16", "tile"),
        ("kernel=sliced tile_mnk=8x96x128 slot_warps=3", "3,416,72,16", "warpgroups"),
        ("kernel=sliced tile_mnk=16x96x128 ctas_per_sm=2", "3,416,72,16", "registers"),
        ("kernel=sliced tile_mnk=8x96x128 split_k=8", "3,416,72,16", "cluster"),
        ("kernel=sliced tile_mnk=8x96x128 num_ab_stage=6", "3,416,72,16", "stages"),
        ("kernel=sliced tile_mnk=8x24x128 num_ab_stage=4 down_columns=64", "3,416,72,64", "stages"),
        ("kernel=sliced tile_mnk=32x64x128 num_ab_stage=4", "32,3840,3072,128", "stages"),
    ],
)
def test_rules(text: str, shape: str, rule: str) -> None:
    found = legal(text, problem(shape))
    assert isinstance(found, Rejection) and found.rule == rule


def test_gated_columns_are_for_others() -> None:
    found = legal(FEW, problem("3,416,64,16", activation="swiglu"))
    assert isinstance(found, Rejection) and found.rule == "activation"


@pytest.mark.parametrize("text", [pytest.param(FEW, marks=pytest.mark.slow), SHARED])
def test_the_budget_is_what_the_launch_asks_for(text: str) -> None:
    one_launch.the_budget_is_what_the_launch_asks_for(text)


def test_auto_is_two_slots_each_or_one() -> None:
    two, one = (
        legal(f"kernel=sliced tile_mnk=16x64x128 consumer_warpgroups={groups}", problem("16,3840,3072,128"))
        for groups in (2, 4)
    )
    assert isinstance(two, Legal) and isinstance(one, Legal)
    assert (two.config.num_ab_stage, one.config.num_ab_stage) == (8, 16)
    few = legal(
        "kernel=sliced tile_mnk=16x128x128 consumer_warpgroups=3 slot_warps=1", problem("16,3840,3072,128")
    )
    assert isinstance(few, Legal) and few.config.num_ab_stage == 12


@pytest.mark.parametrize("text", [FEW, SHARED, WIDE, "kernel=sliced tile_mnk=32x64x128 num_ab_stage=8"])
def test_sums_lie_where_slots_have_been(text: str) -> None:
    """The room that the rule counts with is there in what the kernel allocates: what comes behind stays as it is."""
    shape = problem("30,3840,264,128")
    found = legal(text, shape)
    assert isinstance(found, Legal), found
    config: Any = found.config
    sizes = {name: size for name, size, ring in found.budget.footprint.smem if ring == "ab"}
    slots = ("x", "packed", "scales", "smooth", "1 / smooth")
    assert config.sums_room <= config.num_ab_stage * sum(sizes[name] for name in slots)
    assert config.sums_bytes(128) <= config.sums_room


def test_loads_of_a_slot_are_over_before_it_is_given_back() -> None:
    """In SASS: products may stand behind the arrival, so that a fence must be before it. The PTX, and so the machine,
    cannot tell; on a card such kernels were wrong in one launch of two.
    """
    ptx = compiled(SHARED, problem("17,672,72,48"))[0].ptx
    behind_products = [part for part in ptx.split("mbarrier.arrive.shared")[:-1] if "mma.sync" in part]
    assert len(behind_products) == 2, "in both kinds of CTAs"
    assert all("fence.proxy.async" in part.split("mma.sync")[-1] for part in behind_products)


# -- kernels that are wrong --


@pytest.mark.parametrize(
    ("pattern", "into"),
    [
        (r"and\.b32 (%r\d+), s, u;", r"mov.b32 \1, 1;"),
        (r"st\.relaxed\.gpu(\.global\.v2\.b64 \[[^]]*\], \{a, b\})", r"st\1"),
        (r"ld\.relaxed\.gpu(\.global\.v2\.b64)", r"ld\1"),
        pytest.param(r"st\.relaxed\.gpu\.global\.v2\.b64 \[[^]]*\], \{a, a\};", "", marks=pytest.mark.slow),
        (r"bar\.sync \t1, 128;", ""),
    ],
    ids=["nobody waits for pairs", "a weak store", "a weak load", "nobody clears the pairs", "nobody meets"],
)
def test_what_is_not_handed_over_is_seen(pattern: str, into: str) -> None:
    assert not all(one_launch.mutated(SHARED, pattern, into))
