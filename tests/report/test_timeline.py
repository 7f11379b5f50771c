"""Timelines: lanes and pauses worked out from a few written intervals, and from kernels whose account is known."""

from __future__ import annotations

import dataclasses
import functools
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel_space.build.build import build
from kernel_space.core.registry import kernel, operator
from kernel_space.machine.clock.chip import Record
from tests.compiled_cases import resolved
from tests.published import B200
from tuner.report.charts.timeline import (
    head_picture,
    lanes_of,
    legend_keys,
    needs_zoom,
    tail_picture,
    whole_picture,
)
from tuner.report.data.clock import Clocked
from tuner.report.data.timeline import (
    PAUSES,
    Timeline,
    merged,
    packed,
    shares,
    slots,
    timeline_of,
)
from tuner.report.data.words import Words, classes_of, words_of
from tuner.simulated.time import SimulatedTime, simulate

KERNELS = Path(__file__).resolve().parents[2] / "kernel_space" / "operators" / "svdquant_gemm" / "sm100a"

# Two k-tiles of two MMAs each and one LoRA MMA, in cycles: the MMA warp waits for the first tile, before the second for
# two things (the later wait is blamed first), and for LoRA while the pipe still works.
RECORD: Record = [
    ("CTA 0 TMA", "A/B", 0.0, 100.0),
    ("CTA 0 TMA", "A/B", 10.0, 110.0),
    ("CTA 0 TMA", "A/B", 50.0, 160.0),
    ("CTA 0 TMA", "A/B", 60.0, 200.0),
    ("CTA 0 TMA", "LoRA", 70.0, 205.0),
    ("CTA 0 warp 0", "wait tensor", 20.0, 270.0),
    ("CTA 0 warp 4", "wait tma A/B", 20.0, 110.0),
    ("CTA 0 tensor", "mma mxf4nvf4", 120.0, 140.0),
    ("CTA 0 tensor", "mma mxf4nvf4", 140.0, 160.0),
    ("CTA 0 warp 4", "wait arrive", 125.0, 130.0),
    ("CTA 0 warp 4", "wait tma A/B", 165.0, 200.0),
    ("CTA 0 tensor", "mma mxf4nvf4", 210.0, 230.0),
    ("CTA 0 tensor", "mma mxf4nvf4", 230.0, 250.0),
    ("CTA 0 warp 4", "wait tma LoRA", 230.0, 240.0),
    ("CTA 0 tensor", "kind switch", 250.0, 251.0),
    ("CTA 0 tensor", "mma f16", 251.0, 261.0),
    ("CTA 0 stores", "store", 290.0, 330.0),
    ("CTA 1 TMA", "A/B", 0.0, 100.0),
    ("CTA 0 warp 5", "wait tensor", 80.0, 125.0),
]


WORDS = Words(
    loads=("A/B", "LoRA"),
    mmas={"mma mxf4nvf4": "NVFP4", "mma f16": "LoRA"},
    arrive="waiting for the accumulator",
    tma_warp=5,
    mma_warp=4,
    epilogue_warp=0,
)


def by_hand(pieces: int = 2, turns: int = 1) -> Timeline:
    """The record at 0.01 us a cycle, after a launch of 1 us; the last CTA has gone at cycle 400."""
    return drawn(RECORD, launch_us=1.0, end_us=5.0, pieces=pieces, turns=turns)


def drawn(record: Record, **options: Any) -> Timeline:
    return timeline_of(record, words=WORDS, us_per_cycle=0.01, **options)


def approx(spans: list[tuple[float, float]]) -> list[object]:
    return [pytest.approx(span) for span in spans]


# ---- numbers --------------------------------------------------------------------------------------------------------
def test_lanes_are_in_microseconds_since_the_launch() -> None:
    spans = by_hand().spans
    assert list(spans["tma0"]) == approx([(1.0, 2.0), (1.1, 2.1), (1.5, 2.6), (1.6, 3.0)])  # not CTA 1's
    assert list(spans["mma0"]) == approx([(2.2, 2.4), (2.4, 2.6), (3.1, 3.3), (3.3, 3.5)])
    assert list(spans["mma1"]) == approx([(3.51, 3.61)])
    assert list(spans["wait_slot"]) == approx([(1.8, 2.25)])
    assert list(spans["wait_result"]) == approx([(1.2, 3.7)])
    assert list(spans["epilogue"]) == approx([(3.7, 4.3)])  # from the finished accumulator to the last store
    assert by_hand().first_mma_us == pytest.approx(2.2)
    assert by_hand().last_mma_us == pytest.approx(3.61)


def test_pauses_are_blamed_on_the_latest_wait_first() -> None:
    """The gap 160..210: 35 cycles waited for A/B, 5 for the accumulator, 10 left for instructions. The wait for LoRA
    fell into busy time, and nothing before the first MMA is a pause."""
    pauses = by_hand().pauses
    assert list(pauses["wait0"]) == approx([(2.6, 2.95)])
    assert list(pauses["wait_acc"]) == approx([(2.95, 3.0)])
    assert list(pauses["issue"]) == approx([(3.0, 3.1)])
    assert pauses["wait1"] == ()


def test_tiles_and_loads_of_a_slot() -> None:
    assert by_hand(pieces=2, turns=1).tiles == (pytest.approx(2.2), pytest.approx(3.1))
    assert by_hand(pieces=2, turns=1).loads_per_turn == 2
    assert by_hand(pieces=3).tiles == ()  # four MMAs are no three equal tiles
    assert by_hand(pieces=1, turns=3).loads_per_turn == 0
    assert by_hand(pieces=0).tiles == ()


def test_shares_by_hand() -> None:
    found = shares([(0.0, 1.0), (0.5, 2.5), (3.9, 9.0)], 0.0, 4.0, 4)
    assert found.tolist() == pytest.approx([1.5, 1.0, 0.5, 0.1])
    assert shares([], 0.0, 1.0, 2).tolist() == [0.0, 0.0]


def test_merged_slots_and_rows_by_hand() -> None:
    assert merged([(0, 1), (1, 2), (2.5, 3)]) == [(0, 2), (2.5, 3)]
    assert merged([(0, 5), (1, 2), (2.5, 3)], gap=0.5) == [(0, 5)]
    assert slots([(0, 4), (1, 3), (2, 6), (3, 5)], 2) == [(0, 4), (2, 6)]
    assert slots([(0, 4), (1, 3)], 0) == [(0, 4), (1, 3)]
    assert packed([(0, 4), (1, 3), (3, 5), (4, 6)]) == [0, 1, 1, 0]


def test_words_of_the_kernel_are_those_of_its_sources() -> None:
    found = words_of(operator("svdquant_gemm"), kernel("svdquant_gemm", "sm100a"))
    assert found == dataclasses.replace(WORDS, loads=("A/B", "LoRA", "wcscale", "bias"))
    sources, epilogue = (KERNELS / "kernel.py").read_text(), (KERNELS / "epilogue.py").read_text()
    assert int(re.search(r"^MMA_WARP = (\d)", sources, re.M)[1]) == found.mma_warp  # type: ignore[index]
    assert int(re.search(r"^TMA_WARP = (\d)", sources, re.M)[1]) == found.tma_warp  # type: ignore[index]
    assert re.search(rf"^EPILOGUE_WARPS = \({found.epilogue_warp},", epilogue, re.M)


def test_words_of_a_kernel_that_states_nothing() -> None:
    """Its operands by their arguments, its MMAs by their kinds, no warp with a role."""
    found = words_of(operator("rowstats"), kernel("rowstats", "rows"))
    assert found.loads == ("x",)
    assert found.mmas == {"mma mxf4nvf4": "NVFP4", "mma f16": "fp16"}
    assert (found.tma_warp, found.mma_warp, found.epilogue_warp) == (None, None, None)
    assert found.names()["tma0"] == "x load in flight"
    assert found.classes()["waiting for x"] == "wait0"


def test_more_operands_than_colours_share_the_last_one() -> None:
    words = Words(loads=("a", "b", "c", "d", "e"))
    assert [key for _, key, _ in words.load_keys()] == ["tma0", "tma1", "tma2", "tma3", "tma3"]
    assert words.names()["tma3"] == "d load in flight, e load in flight"
    assert [lane.name for lane in lanes_of([words])][:4] == ["TMA a", "TMA b", "TMA c", "TMA d, e"]
    both = classes_of([Words(loads=("x",)), words])
    assert (both["waiting for x"], both["waiting for a"], both["waiting for b"]) == (
        "wait0",
        "wait0",
        "wait1",
    )


# ---- of kernels -----------------------------------------------------------------------------------------------------
SHAPE = "4352,3840,3072,128"


@functools.cache
def simulated(text: str) -> tuple[SimulatedTime, Timeline]:
    config, problem = resolved(text, SHAPE)
    compiled = build(config, problem.problem_class, B200().arch)
    time = simulate(compiled, config, problem, B200(), record=True)
    per_cycle = (time.us - time.terms["launch"]) / float(time.run.cycles[0])
    timeline = timeline_of(
        time.run.record or [],
        words=WORDS,
        us_per_cycle=per_cycle,
        launch_us=time.terms["launch"],
        end_us=time.us,
        pieces=6,
        turns=15,
    )
    return time, timeline


def length(spans: tuple[tuple[float, float], ...]) -> float:
    return sum(end - begin for begin, end in spans)


@pytest.mark.parametrize("text", ["mma_tiler_mn=256x128", "mma_tiler_mn=256x128 num_ab_stage=2"])
def test_lanes_hold_what_the_account_of_the_clock_says(text: str) -> None:
    """The account is kept by the pipe while it runs; the picture is made from the record afterwards."""
    time, timeline = simulated(text)
    terms = time.terms
    for cause, spans in (
        ("tensor, NVFP4", timeline.spans["mma0"]),
        ("tensor, LoRA", timeline.spans["mma1"]),
        ("tensor, scale-factor copies", timeline.spans["copy"]),
        ("waiting for A/B", timeline.pauses["wait0"]),
        ("waiting for LoRA", timeline.pauses["wait1"]),
        ("waiting for the accumulator", timeline.pauses["wait_acc"]),
        ("MMA warp issuing", timeline.pauses["issue"]),
    ):
        assert length(spans) == pytest.approx(terms.get(cause, 0.0), abs=1e-6), cause
    first = min(timeline.spans["copy"][0][0], timeline.first_mma_us)  # the pipe's first operation is a copy
    assert first == pytest.approx(terms["launch"] + terms["prologue"])
    assert time.us - timeline.last_mma_us == pytest.approx(terms["epilogue exposed"])


def test_six_tiles_of_15_k_tiles_with_four_loads_each() -> None:
    """17 x 24 tiles on 74 pairs; A, B, SFA and SFB of each k-tile."""
    _, timeline = simulated("mma_tiler_mn=256x128")
    assert len(timeline.tiles) == 6
    assert timeline.loads_per_turn == 4
    assert max(packed(slots(timeline.spans["tma0"], 4))) + 1 == 5  # the ring of five slots was full once


# ---- pictures -------------------------------------------------------------------------------------------------------
def clocked(timeline: Timeline, us: float, role: str = "winner") -> Clocked:
    time = SimulatedTime(
        sets_us=np.array([us, us * 1.1]), discrepancy=0.0, about="", terms={"launch": 1.0}, run=None
    )  # type: ignore[arg-type]
    return Clocked(roles=(role,), config="", time=time, timeline=timeline, tail_us=0.5, waves="2 pieces")


def paths(picture: str, css: str) -> list[list[tuple[float, float, float, float]]]:
    """Rectangles (x, y, width, height) of each path of a class, from its text."""
    found = []
    for element in ElementTree.fromstring(picture).iter("path"):
        if element.get("class") == css:
            boxes = re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)", element.get("d", ""))
            found.append([tuple(map(float, box)) for box in boxes])
    return found  # type: ignore[return-value]


def test_whole_launch_is_drawn_to_scale() -> None:
    """5 us on 914 pixels from 112 on: MMAs at 2.2..2.6 and 3.1..3.5, which follow each other without a gap in twos."""
    [boxes] = paths(whole_picture([clocked(by_hand(), 5.0)]), "t-mma0")
    assert [(x, width) for x, _, width, _ in boxes] == [
        (pytest.approx(112 + 2.2 * 182.8, abs=0.06), pytest.approx(0.4 * 182.8, abs=0.06)),
        (pytest.approx(112 + 3.1 * 182.8, abs=0.06), pytest.approx(0.4 * 182.8, abs=0.06)),
    ]


def test_candidates_share_one_axis_and_lanes_one_height() -> None:
    short = drawn(RECORD, launch_us=0.0, end_us=4.0)
    picture = whole_picture([clocked(by_hand(), 5.0), clocked(short, 4.0, "runner-up")])
    first, second = paths(picture, "t-mma0")
    assert first[0][0] - second[0][0] == pytest.approx(182.8, abs=0.11)  # a launch of 1 us more
    assert {height for box in (*first, *second) for height in box[3:]} == {16.0}
    assert second[0][1] > first[0][1]


def test_ends_are_aligned() -> None:
    short = drawn(RECORD, launch_us=0.0, end_us=4.0)
    picture = tail_picture([clocked(by_hand(), 5.0), clocked(short, 4.0)])
    first, second = paths(picture, "t-store")
    assert first[0][0] == pytest.approx(second[0][0], abs=0.11)
    assert "-1" in [element.text for element in ElementTree.fromstring(picture).iter("text")]


def test_pictures_of_a_real_kernel_are_small_and_well_formed() -> None:
    time, timeline = simulated("mma_tiler_mn=256x128")
    shown = [Clocked(roles=("winner",), config="", time=time, timeline=timeline, tail_us=1.0, waves="")] * 2
    assert needs_zoom(shown)
    pictures = [whole_picture(shown), head_picture(shown), tail_picture(shown)]
    for picture in pictures:
        root = ElementTree.fromstring(picture)
        names = [element.text for element in root.iter("text")]
        assert all(names.count(lane.name) == 2 for lane in lanes_of([WORDS]))
        for box in root.iter("path"):
            assert not re.search(r"nan|inf|e[+-]", box.get("d", ""))
    assert sum(map(len, pictures)) < 120_000
    assert set(legend_keys(shown)) >= {"tma0", "mma0", "mma1", "epilogue", "store", "wait0", "issue"}


def test_a_busy_lane_is_drawn_by_shares() -> None:
    """2000 waits of half a bin each: no span can be seen, so the lane shows one area at half its height."""
    record: Record = [("CTA 0 warp 5", "wait tensor", float(place), place + 0.5) for place in range(2000)]
    timeline = drawn(record, launch_us=0.0, end_us=20.0)
    [element] = [
        one
        for one in ElementTree.fromstring(whole_picture([clocked(timeline, 20.0)])).iter("path")
        if one.get("class") == "t-wait_slot"
    ]
    levels = [float(level) for level in re.findall(r"V([\d.]+)", element.get("d", ""))]
    assert max(levels) - min(levels) == pytest.approx(5.0, abs=1.0)  # of a lane of 10


def test_pauses_are_the_waits_of_the_mma_warp() -> None:
    assert set(by_hand().pauses) == {*PAUSES, "issue"}
