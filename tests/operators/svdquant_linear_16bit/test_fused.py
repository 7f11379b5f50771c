"""``fused`` executed: y and lora_act_in against float64, ragged shapes, every schedule, races on; who waits for whom,
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
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem
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

WHOLE_K = "kernel=fused tile_mnk=64x16x128 consumer_warpgroups=1 num_ab_stage=4 num_dq_stage=3 split_k=1"
PAIR = "kernel=fused tile_mnk=64x24x128 consumer_warpgroups=1 num_ab_stage=4 split_k=2 ctas_per_sm=2 use_pdl=true"
FOUR = "kernel=fused tile_mnk=128x40x128 consumer_warpgroups=2 num_ab_stage=4 split_k=4 use_pdl=true"
SMALL = "9,352,8,16"  # one tile of y and one of the low-rank branch
TALL = "kernel=fused tile_mnk=256x16x128 consumer_warpgroups=2 num_ab_stage=4 split_k=2"
checked = functools.partial(runs.checked, sms=lambda config: 4 * config.split_k)


@pytest.mark.slow
@pytest.mark.parametrize("text", [WHOLE_K, FOUR])
def test_y_is_the_layer_by_hand(text: str) -> None:
    is_the_layer_by_hand(text, problem("21,672,136,48"))


@pytest.mark.slow
def test_an_identity_reads_its_weights() -> None:
    reads_its_weights(PAIR, problem("16,160,72,0"))


CASES = [(WHOLE_K, "21,352,72,16", {})]
SLOW_CASES = [
    (PAIR, "29,480,8,80", {}),  # of its second slice of R a half lies beyond
    (FOUR, "61,1184,264,128", {}),
    (WHOLE_K, "37,672,136,16", {}),
    (PAIR, "29,608,72,48", {}),
    (TALL, "18,480,264,128", {}),
    (PAIR, "1,160,8,0", {}),
    (PAIR, "61,352,264,48", {"activation": "gelu_tanh"}),
    (PAIR, "61,352,272,0", {"activation": "swiglu"}),
    (WHOLE_K, "30,352,272,64", {"activation": "swiglu"}),
    (FOUR, "70,992,136,512", {}),
    (WHOLE_K, "18,736,136,512", {}),
    (
        "kernel=fused tile_mnk=128x256x128 consumer_warpgroups=2 split_k=4 use_pdl=true",
        "300,1056,136,128",
        {},
    ),
    ("kernel=fused tile_mnk=64x72x128 consumer_warpgroups=1 split_k=5 use_pdl=true", "130,1312,72,80", {}),
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


@pytest.mark.parametrize("text", [PAIR, FOUR])
def test_a_problem_of_a_check_fills_every_slot_of_x_again(text: str) -> None:
    """A slot holds 64 of K. Else nobody waits for its second turn, and what its barrier counts shows nowhere."""
    shape = problem("24,512,128,32")
    config = legal(text, shape).config
    longest = max(one.k for one, _ in exercises(config, shape, SM90A))
    assert longest // 64 // config.split_k >= 2 * int(config.num_dq_stage)


@pytest.mark.slow
def test_all_that_a_search_checks() -> None:
    shape = problem("61,352,264,48")
    kernel, config = compiled(PAIR, shape)
    result = check_candidate(kernel, config, shape)
    assert result.ok, str(result)
    assert result.bitwise
    assert result.runs[0].calls > 1


@pytest.mark.parametrize(
    ("text", "shape", "dtype", "rule"),
    [
        (PAIR, "40,416,72,16", "fp16", "dtype"),
        (PAIR.replace("64x24x128", "64x24x64"), "40,416,72,16", "bf16", "tile_k"),
        (PAIR.replace("split_k=2", "split_k=9"), "40,4160,72,16", "bf16", "cluster"),
        (PAIR.replace("split_k=2", "split_k=4"), "40,4160,72,16", "bf16", "cluster"),
        (PAIR.replace("split_k=2", "split_k=2 num_dq_stage=2"), "40,416,72,16", "bf16", "strips"),
        (FOUR.replace("split_k=4", "split_k=4 num_dq_stage=2"), "40,4160,72,16", "bf16", "strips"),
        (PAIR.replace("num_ab_stage=4", "num_ab_stage=3"), "40,416,72,16", "bf16", "stages"),
        (FOUR.replace("split_k=4", "split_k=4 ctas_per_sm=2"), "40,4160,72,16", "bf16", "ctas_per_sm"),
        (FOUR.replace("num_ab_stage=4", "num_ab_stage=28"), "40,4160,72,16", "bf16", "smem_capacity"),
    ],
)
def test_rules(text: str, shape: str, dtype: str, rule: str) -> None:
    found = legal(text, problem(shape, dtype))
    assert isinstance(found, Rejection) and found.rule == rule


@pytest.mark.parametrize(
    ("text", "r"), [(WHOLE_K, 48), pytest.param(FOUR, 512, marks=pytest.mark.slow), (PAIR, 0)]
)
def test_the_budget_is_what_the_launch_asks_for(text: str, r: int) -> None:
    shape = problem(f"17,672,72,{r}")
    found = legal(text, shape)
    assert isinstance(found, Legal)
    kernel = build(found.config, shape.problem_class, SM90A)
    pointers = {name: 1 << 20 for name in OPERATOR.signature.pointers}
    (launch,) = capture(kernel, *OPERATOR.signature.values(shape, pointers, clusters=2))
    assert launch.smem_bytes == found.budget.smem_bytes


# -- y that is wrong --


@pytest.fixture(scope="module")
def right() -> tuple[dict[str, torch.Tensor], HalfLinearProblem, Any]:
    return right_by(FOUR, "21,672,136,48")


def test_a_right_y_is_right(right: Any) -> None:
    is_right_and_so_is_the_formula(right)


def test_weights_without_smooth_are_seen(right: Any) -> None:
    tensors, sizes, _ = right
    plain = weights_by_hand({**tensors, "smooth": torch.ones_like(tensors["smooth"])}, sizes)
    assert not judged(right, y=y_by_hand(tensors, sizes, plain).bfloat16())["y"]


def test_a_branch_that_is_not_added_is_seen(right: Any) -> None:
    tensors, sizes, _ = right
    without = {**tensors, "lora_act_in": torch.zeros_like(tensors["lora_act_in"])}
    assert not judged(right, y=y_by_hand(without, sizes, weights_by_hand(tensors, sizes)).bfloat16())["y"]


def test_a_branch_of_wrong_sums_is_seen(right: Any) -> None:
    act = right[0]["lora_act_in"].clone()
    act[20, 47] *= 1 + 2**-4
    assert not judged(right, lora_act_in=act)["lora_act_in"]


# -- kernels that are wrong --


def without_first_wait(ptx: str) -> str:
    """Of two waits for the kernel before, that of the warp that copies lora_act_in."""
    waits = [found.start() for found in re.finditer(r"griddepcontrol\.wait;", ptx)]
    behind = [ptx.find("ld.acquire", at) for at in waits]
    assert len(waits) == 2
    nearest = min((end - at, at) for at, end in zip(waits, behind, strict=True) if end > 0)[1]
    return ptx[:nearest] + ptx[nearest:].replace("griddepcontrol.wait;", "", 1)


@pytest.mark.slow
def test_counters_of_the_launch_before_are_seen() -> None:
    """They say that all is ready; on a card a chain of launches differed from launches one by one."""
    shape = problem(SMALL)
    ptx = compiled(PAIR, shape)[0].ptx
    assert not checked(PAIR, shape, ptx=without_first_wait(ptx)).ok


@pytest.mark.parametrize(
    ("pattern", "into"),
    [
        pytest.param(r"griddepcontrol\.wait;", "", marks=pytest.mark.slow),
        (r"barrier\.cluster\.wait[^;]*;", ""),
        pytest.param(r"atom\.global\.release\.add", "atom.global.relaxed.add", marks=pytest.mark.slow),
        pytest.param(r"cp\.async\.wait_group\s+0;", "", marks=pytest.mark.slow),
        pytest.param(r"ld\.acquire\.gpu", "ld.relaxed.gpu", marks=pytest.mark.slow),
    ],
    ids=[
        "nobody waits",
        "sums while x is read",
        "stores after the count",
        "copies not waited for",
        "count not acquired",
    ],
)
def test_a_broken_kernel_is_seen(pattern: str, into: str) -> None:
    shape = problem(SMALL)
    changed, found = re.subn(pattern, into, compiled(PAIR, shape)[0].ptx)
    assert found
    assert not checked(PAIR, shape, ptx=changed).ok
