"""``staged_nvfp4`` executed: x to the values of its codes, y and lora_act_in against float64, ragged shapes, every
schedule, races on; parts whose CTA does not come; who waits for whom, by breaking it.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from kernel_space.check.problem import exercises
from kernel_space.core.arch import SM90A
from kernel_space.core.rules import Rejection
from kernel_space.machine.run.schedules import SCHEDULES
from kernel_space.numerics.nvfp4 import NVFP4Tensor, block_scales, dequantize_nvfp4, unblock_scales
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from tests.operators.svdquant_linear import one_launch
from tests.operators.svdquant_linear.runs import (
    DTYPES,
    OPERATOR,
    checked,
    is_the_layer,
    launched,
    problem,
    weights_by_hand,
    y_by_hand,
)
from tests.operators.svdquant_linear_16bit.runs import compiled, legal

WHOLE_K = (
    "kernel=staged_nvfp4 tile_mnk=64x32x128 num_dequant_warpgroups=1 num_dq_stage=3 num_ab_stage=2 num_x_stage=2 "
    "split_k=1"
)
PAIR = (
    "kernel=staged_nvfp4 tile_mnk=64x24x128 num_dequant_warpgroups=2 num_dq_stage=4 num_ab_stage=2 num_x_stage=2 "
    "split_k=2 use_pdl=true"
)
THREE = "kernel=staged_nvfp4 tile_mnk=64x40x128 split_k=4 use_pdl=true quantize_parts=5"
SHARED = "kernel=staged_nvfp4 tile_mnk=64x24x128 num_dequant_warpgroups=1 split_k=2 share=2 num_x_stage=2 use_pdl=true"
TALL = "kernel=staged_nvfp4 tile_mnk=128x40x128 consumer_warpgroups=2 num_dequant_warpgroups=2 split_k=4 use_pdl=true"
BLOCKS = "kernel=staged_nvfp4 tile_mnk=128x32x128 num_dequant_warpgroups=1 split_k=2 quantize_parts=40"
SMALL = "9,352,8,16"  # one tile of y and one of the low-rank branch


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        (WHOLE_K, "bf16"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((WHOLE_K, "fp16"), (THREE, "bf16"))),
    ],
)
def test_y_is_the_layer_by_hand(text: str, dtype: str) -> None:
    one_launch.y_is_the_layer_by_hand(text, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_code_times_every_scale_is_exact(dtype: str) -> None:
    """Row n has scale n, of all that are positive numbers, and each block of K the sixteen codes; x has a single 6 in
    each row, of which the code is 6 and the scale 1.
    """
    shape = problem("16,32,128,0", dtype)
    scales = torch.arange(128).clamp(max=126).to(torch.uint8).view(torch.float8_e4m3fn)
    codes = torch.arange(8, dtype=torch.uint8) * 0x22 + 0x10
    given = {
        "wgt": codes.repeat(128, 2),
        "wscales": block_scales(scales[:, None].repeat(1, 2)),
        "smooth": torch.ones(32),
        "wcscale": torch.full((128,), 0.25),  # 6 times the largest weight is out of range
        "bias": torch.zeros(128),
    }
    weights = dequantize_nvfp4(
        NVFP4Tensor(codes=given["wgt"], scales=unblock_scales(given["wscales"], 128, 32))
    )
    for begin in (0, 16):
        x = torch.zeros(16, 32, dtype=DTYPES[dtype])
        x[torch.arange(16), begin + torch.arange(16)] = 6.0
        found = launched(WHOLE_K, shape, x=x, **given)["y"].float()
        assert torch.equal(found, 1.5 * weights[:, begin : begin + 16].T)


@pytest.mark.parametrize("dtype", DTYPES)
def test_x_is_the_values_of_its_codes(dtype: str) -> None:
    one_launch.x_is_the_values_of_its_codes(PAIR, dtype)


def test_smooth_whose_reciprocal_is_divided_for() -> None:
    one_launch.smooth_is_divided_for(PAIR)


@pytest.mark.parametrize("value", [torch.nan, pytest.param(torch.inf, marks=pytest.mark.slow)])
def test_what_is_no_number_makes_its_rows_none(value: float) -> None:
    one_launch.what_is_no_number_makes_its_rows_none(WHOLE_K, problem("21,672,136,0"), value)


@pytest.mark.parametrize("schedule", ["random", pytest.param("eager", marks=pytest.mark.slow)])
def test_parts_whose_cta_does_not_come_are_taken(schedule: str) -> None:
    """Two SMs where the launch is told of eight clusters, as when another launch has the others: whoever runs takes
    the parts of those who wait for a place, or nobody would ever end.
    """
    shape = problem("61,672,136,0")  # more vectors than all parts have threads
    tensors = launched(PAIR, shape, sms=2, clusters=8, schedule=schedule)
    is_the_layer(tensors, shape)


@pytest.mark.slow
def test_more_tiles_of_rows_than_there_are_sms() -> None:
    """CTAs of the second tile that come with the first take parts of those that cannot come before they end."""
    shape = problem("150,352,136,16")
    tensors = launched(PAIR, shape, sms=14, clusters=7)
    is_the_layer(tensors, shape)


CASES: list[tuple[str, str, dict[str, str]]] = [
    (WHOLE_K, "21,352,72,16", {}),
    (PAIR, "29,480,40,48", {"dtype": "fp16"}),
]
SLOW_CASES: list[tuple[str, str, dict[str, str]]] = [
    (SHARED, "29,736,40,48", {}),  # tiles of lora_act_in and of y in one cluster
    (PAIR, "29,480,8,80", {}),  # of its second tile of R a half lies beyond
    (THREE, "61,1184,264,128", {}),
    (WHOLE_K, "37,672,136,16", {}),
    (TALL, "118,992,136,48", {}),
    (BLOCKS, "130,1024,136,256", {}),
    (PAIR, "1,160,8,0", {}),
    (PAIR.replace("64x24", "64x16"), "61,352,272,0", {"activation": "swiglu"}),
    (PAIR, "61,352,264,48", {"activation": "gelu_tanh"}),
    ("kernel=staged_nvfp4 tile_mnk=64x48x128 split_k=3 use_pdl=true", "130,1312,72,80", {}),
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
    one_launch.it_ends_on_fewer_sms(PAIR, problem("9,160,136,16"), sms=3)


def test_a_problem_of_a_check_fills_every_slot_again() -> None:
    shape = problem("24,512,128,32")
    config = legal(PAIR, shape).config
    longest = max(one.k for one, _ in exercises(config, shape, SM90A))
    slots = max(int(getattr(config, name)) for name in config.stage_names())
    assert longest // 128 // config.split_k >= 2 * slots


@pytest.mark.slow
def test_all_that_a_search_checks() -> None:
    one_launch.all_that_a_search_checks_is_right(PAIR, problem("61,352,264,48"))


@pytest.mark.parametrize(
    ("text", "shape", "dtype", "rule"),
    [
        (f"{PAIR} quantize_parts=129", "40,416,72,16", "bf16", "parts"),
        (f"{PAIR} quantize_parts=0", "40,416,72,16", "bf16", "parts"),
        (PAIR.replace("64x24x128", "96x24x128"), "40,416,72,16", "bf16", "tile"),
        (PAIR.replace("num_ab_stage=2", "num_ab_stage=3"), "40,416,72,16", "bf16", "stages"),
        (THREE.replace("split_k=4", "split_k=4 num_ab_stage=48"), "40,4160,72,16", "bf16", "smem_capacity"),
    ],
)
def test_rules(text: str, shape: str, dtype: str, rule: str) -> None:
    found = legal(text, problem(shape, dtype))
    assert isinstance(found, Rejection) and found.rule == rule, found


@pytest.mark.parametrize(("text", "r"), [(WHOLE_K, 48), (PAIR, 0)])
def test_the_budget_is_what_the_launch_asks_for(text: str, r: int) -> None:
    one_launch.the_budget_is_what_the_launch_asks_for(text, r)


# -- y that is wrong --


@functools.cache
def right() -> tuple[dict[str, torch.Tensor], LinearProblem, Any]:
    shape = problem("21,672,136,48")
    return launched(WHOLE_K, shape), shape, compiled(WHOLE_K, shape)[1]


def judged(**changed: torch.Tensor) -> dict[str, bool]:
    tensors, shape, config = right()
    return {name: one.ok for name, one in OPERATOR.check(shape, {**tensors, **changed}, config).items()}


def test_a_right_y_is_right_and_so_is_the_formula() -> None:
    tensors, shape, _ = right()
    assert all(judged().values())
    assert judged(y=y_by_hand(tensors, shape).bfloat16())["y"]


def test_y_of_an_x_that_is_not_quantized_is_seen() -> None:
    tensors, shape, _ = right()
    given = (tensors["x"].double() / tensors["smooth"].double()) @ weights_by_hand(tensors, shape).T
    given += tensors["lora_act_in"].double() @ tensors["lora_up"].double().T
    y = given * tensors["wcscale"].double() + tensors["bias"].double()
    assert not judged(y=y.bfloat16())["y"]


# -- kernels that are wrong --


@pytest.mark.parametrize(
    ("pattern", "into"),
    [
        (r"fence\.proxy\.async\.global;", ""),
        pytest.param(r"atom\.global\.release\.add", "atom.global.relaxed.add", marks=pytest.mark.slow),
        pytest.param(r"ld\.acquire\.gpu", "ld.relaxed.gpu", marks=pytest.mark.slow),
        pytest.param(r"griddepcontrol\.wait;", "", marks=pytest.mark.slow),
        pytest.param(r"barrier\.sync\s+6,[^;]*;|bar\.sync\s+6,[^;]*;", "", marks=pytest.mark.slow),
    ],
    ids=["x not fenced", "stores after the count", "count not acquired", "nobody waits", "part not whole"],
)
def test_a_broken_kernel_is_seen(pattern: str, into: str) -> None:
    one_launch.a_broken_kernel_is_seen(PAIR, problem(SMALL), pattern, into)
