"""``staged`` executed: y and lora_act_in against float64, ragged shapes, every schedule, races on; who waits for whom,
by breaking it.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
import torch

from kernel_space.build.build import build
from kernel_space.check.problem import exercises
from kernel_space.check.validate import check_candidate
from kernel_space.core.arch import SM90A
from kernel_space.core.rules import Legal, Rejection
from kernel_space.launch.capture import capture
from kernel_space.machine.run.schedules import SCHEDULES
from kernel_space.numerics.nvfp4 import block_scales
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem
from kernel_space.operators.svdquant_linear_16bit.staged.strips import Strips
from tests.operators.svdquant_linear_16bit import runs
from tests.operators.svdquant_linear_16bit.runs import (
    OPERATOR,
    compiled,
    is_right_and_so_is_the_formula,
    is_the_layer_by_hand,
    judged,
    legal,
    problem,
    reads_its_weights,
    right_by,
    weights_by_hand,
    y_by_hand,
)

FEW = "num_ab_stage=2 num_x_stage=2"
WHOLE_K = f"kernel=staged tile_mnk=64x32x128 num_dequant_warpgroups=1 num_dq_stage=3 {FEW} split_k=1"
PAIR = (
    f"kernel=staged tile_mnk=64x24x128 num_dequant_warpgroups=2 num_dq_stage=4 {FEW} split_k=2 use_pdl=true"
)
THREE = "kernel=staged tile_mnk=64x40x128 split_k=4 use_pdl=true"
SHARED = (
    "kernel=staged tile_mnk=64x24x128 num_dequant_warpgroups=1 split_k=2 share=2 num_x_stage=2 use_pdl=true"
)
FOUR = "kernel=staged tile_mnk=64x16x128 num_dequant_warpgroups=1 split_k=1 share=4 num_x_stage=2"
TALL = (
    "kernel=staged tile_mnk=128x40x128 consumer_warpgroups=2 num_dequant_warpgroups=2 split_k=4 use_pdl=true"
)
BLOCKS = "kernel=staged tile_mnk=128x32x128 num_dequant_warpgroups=1 split_k=2"
TWO = "kernel=staged tile_mnk=64x64x128 num_dequant_warpgroups=2 split_k=2 ctas_per_sm=2 use_pdl=true"
EARLY = f"{WHOLE_K} early_release=true"
SMALL = "9,352,8,16"  # one tile of y and one of the low-rank branch
checked = functools.partial(runs.checked, sms=lambda config: 4 * config.split_k * config.share)


@pytest.mark.parametrize("text", [WHOLE_K, pytest.param(THREE, marks=pytest.mark.slow)])
def test_y_is_the_layer_by_hand(text: str) -> None:
    is_the_layer_by_hand(text, problem("21,672,136,48"))


@pytest.mark.slow
def test_an_identity_reads_its_weights() -> None:
    reads_its_weights(PAIR, problem("16,160,72,0"))


def test_every_code_times_every_scale_is_exact() -> None:
    """Row n has scale n, of all that are positive numbers, and each block of K the sixteen codes."""
    sizes = problem("16,32,128,0")
    scales = torch.arange(128).clamp(max=126).to(torch.uint8).view(torch.float8_e4m3fn)
    codes = torch.arange(8, dtype=torch.uint8) * 0x22 + 0x10
    reads_its_weights(
        WHOLE_K,
        sizes,
        wgt=codes.repeat(128, 2),
        wscales=block_scales(scales[:, None].repeat(1, 2)),
        smooth=torch.ones(sizes.k),
    )


@pytest.mark.slow
def test_smooth_of_the_largest_exponents() -> None:
    """Their reciprocals are subnormal numbers, of which the quick way makes zeros. The oracle rounds them to the few
    bits of such numbers, the kernel while they are 2^7 times as large.
    """
    sizes = problem("16,160,72,0")
    smooth = torch.ones(sizes.k)
    smooth[1::3], smooth[2::7] = 1.37 * 2.0**126, 1.9 * 2.0**126
    reads_its_weights(PAIR, sizes, off=2.0**-5, smooth=smooth)


CASES: list[tuple[str, str, dict[str, str]]] = [
    (WHOLE_K, "21,352,72,16", {}),
    (WHOLE_K, "61,480,72,144", {}),  # three 64s of R are a slot and half of one
    (EARLY, "61,480,72,144", {}),
]
SLOW_CASES: list[tuple[str, str, dict[str, str]]] = [
    (SHARED, "29,736,40,48", {}),  # tiles of lora_act_in and of y in one cluster
    (PAIR, "29,480,8,80", {}),  # of its second tile of R a half lies beyond
    (THREE, "61,1184,264,128", {}),
    (WHOLE_K, "37,672,136,16", {}),
    (FOUR, "33,1312,88,16", {}),  # the last cluster is filled up with tiles that have no columns
    (TALL, "118,992,136,48", {}),
    (BLOCKS, "130,1024,136,256", {}),
    (f"{BLOCKS} early_release=true", "130,1024,136,256", {}),
    (f"{SHARED} early_release=true", "29,736,40,48", {}),
    (TWO, "61,992,136,128", {}),
    (PAIR, "1,160,8,0", {}),
    (PAIR, "29,480,8,512", {}),  # two slots of R each in rings of two
    (PAIR, "64,1312,40,144", {}),
    (PAIR.replace("64x24", "64x16"), "61,352,272,0", {"activation": "swiglu"}),
    (WHOLE_K, "30,352,272,48", {"activation": "swiglu"}),
    (PAIR, "61,352,264,48", {"activation": "gelu_tanh"}),
    ("kernel=staged tile_mnk=64x48x128 split_k=3 use_pdl=true", "130,1312,72,80", {}),
    (
        "kernel=staged tile_mnk=256x48x128 consumer_warpgroups=2 num_dequant_warpgroups=1 split_k=2",
        "300,736,136,32",
        {},
    ),
]


@pytest.mark.parametrize(
    ("text", "shape", "options"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES)],
)
@pytest.mark.parametrize(
    "schedule",
    ["random", *(pytest.param(name, marks=pytest.mark.slow) for name in SCHEDULES if name != "random")],
)
def test_y_is_right(schedule: str, text: str, shape: str, options: dict[str, str]) -> None:
    result = checked(text, problem(shape, **options), schedule=schedule)
    assert result.ok, str(result)


@pytest.mark.slow
def test_it_ends_where_not_all_clusters_are_there_at_once() -> None:
    """Warps poll while others, which have let the next launch begin, stand back for it: those go on then."""
    result = runs.checked(PAIR, problem("9,160,136,16"), sms=lambda config: 3, schedule="eager")
    assert result.ok, str(result)


@pytest.mark.parametrize("text", [PAIR, THREE, SHARED])
def test_a_problem_of_a_check_fills_every_slot_again(text: str) -> None:
    """Else nobody waits for its second turn, and what its barrier counts shows nowhere."""
    shape = problem("24,512,128,32")
    config = legal(text, shape).config
    longest = max(one.k for one, _ in exercises(config, shape, SM90A))
    slots = max(int(getattr(config, name)) for name in config.stage_names())
    assert longest // 128 // config.split_k >= 2 * slots


@pytest.mark.slow
def test_all_that_a_search_checks() -> None:
    shape = problem("61,352,264,48")
    kernel, config = compiled(PAIR, shape)
    result = check_candidate(kernel, config, shape)
    assert result.ok, str(result)
    assert result.bitwise
    assert result.runs[0].calls > 1


def test_strips_are_all_octets_once() -> None:
    for octets, unit, split in ((13, 1, 4), (6, 1, 4), (16, 2, 3), (2, 1, 8)):
        dealt = Strips(octets, unit, split)
        owned = [dealt.of(owner) for owner in range(split)]
        assert [at for first, count in owned for at in range(first, first + count)] == list(range(octets))
        assert max(count for _, count in owned) == dealt.most


@pytest.mark.parametrize(
    ("text", "shape", "dtype", "rule"),
    [
        (PAIR, "40,416,72,16", "fp16", "dtype"),
        (PAIR.replace("64x24x128", "64x24x64"), "40,416,72,16", "bf16", "tile"),
        (PAIR.replace("64x24x128", "96x24x128"), "40,416,72,16", "bf16", "tile"),
        (PAIR.replace("split_k=2", "split_k=9"), "40,4160,72,16", "bf16", "cluster"),
        (SHARED.replace("split_k=2", "split_k=8"), "40,4160,72,16", "bf16", "cluster"),
        (PAIR.replace("split_k=2", "split_k=8"), "40,416,72,16", "bf16", "cluster"),
        (FOUR, "40,416,72,144", "bf16", "cluster"),
        (f"{PAIR} down_columns=24", "40,416,72,16", "bf16", "cluster"),
        (f"{PAIR} down_columns=144", "40,416,72,16", "bf16", "cluster"),
        (PAIR.replace("num_ab_stage=2", "num_ab_stage=3"), "40,416,72,16", "bf16", "stages"),
        (PAIR.replace("num_dq_stage=4", "num_dq_stage=2"), "40,416,72,64", "bf16", "stages"),
        (BLOCKS.replace("128x32", "256x256"), "40,416,72,16", "bf16", "registers"),
        (PAIR.replace("64x24x128", "64x208x128"), "40,416,72,16", "bf16", "registers"),
        (
            TALL.replace("consumer_warpgroups=2", "consumer_warpgroups=3"),
            "40,416,72,16",
            "bf16",
            "warpgroups",
        ),
        (TWO.replace("ctas_per_sm=2", "ctas_per_sm=3"), "40,416,72,16", "bf16", "warpgroups"),
        (THREE.replace("split_k=4", "split_k=4 num_ab_stage=48"), "40,4160,72,16", "bf16", "smem_capacity"),
    ],
)
def test_rules(text: str, shape: str, dtype: str, rule: str) -> None:
    found = legal(text, problem(shape, dtype))
    assert isinstance(found, Rejection) and found.rule == rule, found


@pytest.mark.parametrize(
    ("text", "r"), [(WHOLE_K, 48), pytest.param(TALL, 256, marks=pytest.mark.slow), (PAIR, 0)]
)
def test_the_budget_is_what_the_launch_asks_for(text: str, r: int) -> None:
    shape = problem(f"17,672,72,{r}")
    found = legal(text, shape)
    assert isinstance(found, Legal), found
    kernel = build(found.config, shape.problem_class, SM90A)
    pointers = {name: 1 << 20 for name in OPERATOR.signature.pointers}
    (launch,) = capture(kernel, *OPERATOR.signature.values(shape, pointers, clusters=2))
    assert launch.smem_bytes == found.budget.smem_bytes


# -- y that is wrong --


@pytest.fixture(scope="module")
def right() -> tuple[dict[str, torch.Tensor], HalfLinearProblem, Any]:
    return right_by(WHOLE_K, "21,672,136,48")


def test_a_right_y_is_right(right: Any) -> None:
    is_right_and_so_is_the_formula(right)


def test_a_part_of_k_that_is_lost_is_seen(right: Any) -> None:
    tensors, sizes, _ = right
    weights = weights_by_hand(tensors, sizes)
    weights[:, 128:192] = 0
    assert not judged(right, y=y_by_hand(tensors, sizes, weights).bfloat16())["y"]


# -- kernels that are wrong --


@pytest.mark.parametrize(
    ("pattern", "into"),
    [
        pytest.param(r"griddepcontrol\.wait;", "", marks=pytest.mark.slow),
        (r"fence\.proxy\.async\.shared::cta;", ""),
        pytest.param(r"atom\.global\.release\.add", "atom.global.relaxed.add", marks=pytest.mark.slow),
        pytest.param(r"cp\.async\.wait_group\s+0;", "", marks=pytest.mark.slow),
        pytest.param(r"ld\.acquire\.gpu", "ld.relaxed.gpu", marks=pytest.mark.slow),
        pytest.param(r"barrier\.cluster\.wait[^;]*;", "", marks=pytest.mark.slow),
    ],
    ids=[
        "nobody waits",
        "weights not fenced",
        "stores after the count",
        "copies not waited for",
        "count not acquired",
        "barriers of others not ready",
    ],
)
def test_a_broken_kernel_is_seen(pattern: str, into: str) -> None:
    shape = problem(SMALL)
    changed, found = re.subn(pattern, into, compiled(PAIR, shape)[0].ptx)
    assert found
    assert not checked(PAIR, shape, ptx=changed).ok


def test_a_slot_that_is_given_back_before_it_is_multiplied_is_seen() -> None:
    """With ``early_release`` wgmma must be done: nobody else waits for it before the next weights come."""
    shape = problem("61,1312,72,16")
    ptx = compiled(EARLY, shape)[0].ptx
    changed, found = re.subn(
        r"wgmma\.wait_group\.sync\.aligned\s+0;", "wgmma.wait_group.sync.aligned 1;", ptx
    )
    assert found and checked(EARLY, shape).ok
    assert not checked(EARLY, shape, ptx=changed, schedule="slow_tensor").ok


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1])
def test_each_warp_waits_for_the_launch_before(which: int) -> None:
    """The one that loads x, and the one that looks whether lora_act_in is there: a count may be the last launch's."""
    shape = problem(SMALL)
    ptx = compiled(PAIR, shape)[0].ptx
    waits = list(re.finditer(r"griddepcontrol\.wait;", ptx))
    assert len(waits) == 2
    begin, end = waits[which].span()
    assert not checked(PAIR, shape, ptx=ptx[:begin] + ptx[end:]).ok
