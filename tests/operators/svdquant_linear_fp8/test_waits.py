"""Who waits for whom in ``merged_fp8``, by breaking it: each wait is taken out of the PTX, and the machine says so."""

from __future__ import annotations

import re

import pytest

from tests.operators.svdquant_linear_fp8.runs import PLAIN, checked, compiled, first_kernel, inputs, problem

# Nine tiles of two SMs, one k-tile each: boxes of y are written again and again.
TILES = PLAIN.replace("num_ab_stage=3", "num_ab_stage=2") + " use_pdl=true"
SIZES = "37,96,72,16"
SMALL = "5,32,8,16"
# One tile, of which rings go round.
LONG = TILES.replace("merge_chunks=4", "merge_chunks=12")
LONG_SIZES = "5,672,72,16"

WAIT = r"griddepcontrol\.wait;"
MEET_GROUP = r"bar\.sync \t%r\d+, 128;"
BOXES_READ = r"cp\.async\.bulk\.wait_group\.read \t0;"
FENCE = r"fence\.proxy\.async\.shared::cta;"
STAGED_READ = r"cp\.async\.bulk\.wait_group\.read \t1;"
MEET_ALL = r"bar\.sync \t0;"
MEET_WARP = r"bar\.warp\.sync \t-1;"
QUESTION = r"mbarrier\.try_wait\.parity\.shared\.b64 P1, \[%r\d+\], %?r?\d+, \d+;"
YES = "setp.eq.s32 P1, 0, 0;"
MULTIPLIED = r"wgmma\.wait_group\.sync\.aligned \t{};"


def without(ptx: str, pattern: str, number: int, of: int, instead: str = "") -> str:
    """``ptx`` without place ``number`` of the ``of`` that ``pattern`` has."""
    places = list(re.finditer(pattern, ptx))
    assert len(places) == of
    place = places[number]
    return ptx[: place.start()] + instead + ptx[place.end() :]


def found(text: str, sizes: str, ptx: str, *, in_a_row: bool = False) -> str:
    result = checked(text, problem(sizes), ptx=ptx, in_a_row=in_a_row)
    assert not result.ok
    return result.findings


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [SMALL, SIZES])
def test_with_all_waits_nothing_is_found(sizes: str) -> None:
    result = checked(TILES, problem(sizes), in_a_row=True)
    assert result.ok, str(result)


@pytest.mark.parametrize(
    ("number", "says"),
    [
        pytest.param(0, "of x: ld.global .* the launch before the first wrote", id="first kernel"),
        pytest.param(1, r"of workspace: .*(TMA load|a copy) .*\(launch 2", id="loading warp"),
        pytest.param(2, r"of workspace: ld.global of warp\d \(launch 2", id="consumer warps"),
    ],
)
def test_who_does_not_wait_for_the_launch_before(number: int, says: str) -> None:
    ptx = without(compiled(TILES, problem(SMALL))[0].ptx, WAIT, number, 3)
    assert re.search(says, found(TILES, SMALL, ptx, in_a_row=number == 0))


@pytest.mark.parametrize(
    ("pattern", "number", "of", "says"),
    [
        pytest.param(
            MEET_GROUP,
            0,
            2,
            "(WAR|RAW) on SMEM .*not known to be complete",
            id="first meeting",
            marks=pytest.mark.slow,
        ),
        pytest.param(MEET_GROUP, 1, 2, "RAW on SMEM .*bulk store reads", id="second meeting"),
        pytest.param(
            BOXES_READ,
            1,
            3,
            "WAR on SMEM .*st.shared overwrites what bulk reads",
            id="boxes read",
            marks=pytest.mark.slow,
        ),
        pytest.param(FENCE, 2, 3, "no fence.proxy.async", id="proxy fence"),
        pytest.param(BOXES_READ, 2, 3, "ends while a bulk store", id="the end", marks=pytest.mark.slow),
    ],
)
def test_an_epilogue_that_does_not_wait(pattern: str, number: int, of: int, says: str) -> None:
    ptx = without(compiled(TILES, problem(SIZES))[0].ptx, pattern, number, of)
    assert re.search(says, found(TILES, SIZES, ptx))


# Of rows that fit four, two and one at a time each loop has its meeting, in this order.
@pytest.mark.parametrize(
    ("number", "k"),
    [(0, 96), *(pytest.param(one, k, marks=pytest.mark.slow) for one, k in ((1, 4160), (2, 8224)))],
)
def test_maxima_of_warps_that_are_read_too_early(number: int, k: int) -> None:
    sizes = problem(f"3,{k},72,16")
    ptx = without(compiled(TILES, sizes)[0].ptx, MEET_ALL, number, 5)
    _, result = first_kernel(TILES, sizes, inputs(sizes), ptx=ptx, merges=False)
    assert re.search("RAW on SMEM .*ld.shared", str(result))


CODES_FREE = "codes free"


def questions_of_the_first_kernel() -> dict[str, int]:
    """What a warp that merges asks barriers for, in this order; of two chunks the loop has a copy each."""
    names = (
        "lora_up",
        "first chunk",
        "codes",
        "next",
        "free",
        "next of the other copy",
        "free of the other copy",
        CODES_FREE,
    )
    return {name: number for number, name in enumerate(names)}


@pytest.mark.parametrize(
    "name",
    [
        "codes",
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in questions_of_the_first_kernel()
            if one not in ("codes", CODES_FREE)
        ),
    ],
)
def test_a_merging_warp_that_does_not_ask_its_barrier(name: str) -> None:
    sizes = problem(LONG_SIZES)
    number = questions_of_the_first_kernel()[name]
    ptx = without(compiled(LONG, sizes)[0].ptx, QUESTION, number, 10, YES)
    _, result = first_kernel(LONG, sizes, inputs(sizes), ptx=ptx)
    assert not result.ok
    if name == "codes":
        assert re.search("RAW on SMEM .*ld.shared reads what mbarrier", str(result))


def test_codes_that_are_replaced_too_early() -> None:
    """Without a low-rank branch: with one whoever refills its ring knows that all warps are further."""
    sizes = problem("5,672,72,0")
    ptx = without(compiled(LONG, sizes)[0].ptx, QUESTION, 1, 4, YES)
    _, result = first_kernel(LONG, sizes, inputs(sizes), ptx=ptx)
    assert re.search("WAR on SMEM", str(result))


@pytest.mark.slow
@pytest.mark.parametrize("number", [8, 9], ids=["a slot that is free", "a slot that is full"])
def test_a_warp_of_the_product_that_does_not_ask_its_barrier(number: int) -> None:
    ptx = without(compiled(LONG, problem(LONG_SIZES))[0].ptx, QUESTION, number, 10, YES)
    assert found(LONG, LONG_SIZES, ptx)


# Not the last of the first kernel: behind it a product that nobody reads is under way when warps end.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "number", "of"),
    [
        (MULTIPLIED.format(0), 0, 4),
        (MULTIPLIED.format(0), 1, 4),
        (MULTIPLIED.format(0), 3, 4),
        (MULTIPLIED.format(1), 0, 1),
    ],
    ids=["lora", "lora of the other copy", "sums that are added", "the slot before"],
)
def test_products_that_are_taken_too_early(pattern: str, number: int, of: int) -> None:
    ptx = without(compiled(LONG, problem(LONG_SIZES))[0].ptx, pattern, number, of)
    assert found(LONG, LONG_SIZES, ptx)


# Of a chunk and of one of the other copy of the loop: places of each pattern, and of how many.
STAGED = {
    "lanes that have not written it all": (MEET_WARP, (4, 7), 11, "RAW on SMEM .*bulk store reads"),
    "no proxy fence": (FENCE, (0, 1), 3, "no fence.proxy.async"),
    "not read yet": (STAGED_READ, (0, 1), 2, "WAR on SMEM .*overwrites what bulk reads"),
    "not read at the end": (BOXES_READ, (0,), 3, "ends while a bulk store"),
}


@pytest.mark.parametrize(
    ("what", "copy"),
    [
        pytest.param(what, copy, marks=[] if what == "no proxy fence" else pytest.mark.slow)
        for what, (_, numbers, _, _) in STAGED.items()
        for copy in range(len(numbers))
    ],
)
def test_merged_weights_that_are_staged_or_stored_too_early(what: str, copy: int) -> None:
    pattern, numbers, of, says = STAGED[what]
    sizes = problem(LONG_SIZES)
    ptx = without(compiled(LONG, sizes)[0].ptx, pattern, numbers[copy], of)
    _, result = first_kernel(LONG, sizes, inputs(sizes), ptx=ptx)
    assert re.search(says, str(result))


@pytest.mark.slow
def test_reciprocals_that_are_read_before_all_warps_have_written_them() -> None:
    """Behind the same meeting barriers are initialised."""
    sizes = problem(LONG_SIZES)
    ptx = without(compiled(LONG, sizes)[0].ptx, MEET_ALL, 3, 5)
    _, result = first_kernel(LONG, sizes, inputs(sizes), ptx=ptx)
    assert not result.ok
