"""Timelines as pictures: candidates one above the other on one time axis, one lane per engine or role."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tuner.report.data.clock import Clocked
from tuner.report.data.timeline import PAUSES, Span, Timeline, merged, packed, shares, slots
from tuner.report.data.words import LOADS, Words
from tuner.report.marks.svg import Chart, Scale, number

WIDTH: Final = 1040
LEFT, RIGHT, TITLE, FOOT, GAP = 112, 14, 34, 40, 4
BIN_PX: Final = 2.0  # a lane too busy to draw span by span shows the share of each bin
SPAN_PX: Final = 3.0  # so much room per span, or the lane is drawn by bins
WHOLE_US: Final = 12.0  # a launch shorter than this can be read without a zoom
HEAD_US, TAIL_US = 6.0, 4.0  # most that a zoom shows
TILES_IN_HEAD: Final = 2


@dataclasses.dataclass(frozen=True)
class Lane:
    """``keys`` of a timeline that share a lane.

    ``how``: ``flight`` draws what overlaps in rows, ``pauses`` what the tensor pipe stood still for, ``thin`` pale.
    """

    name: str
    height: int
    keys: tuple[str, ...]
    how: str = "bars"

    def spans(self, timeline: Timeline, key: str) -> tuple[Span, ...]:
        return (timeline.pauses if self.how == "pauses" else timeline.spans)[key]


_FIRST_LOAD, _FURTHER_LOAD = 30, 12  # pixels: most of what is loaded is the first operand


def lanes_of(words: Sequence[Words]) -> list[Lane]:
    """Lanes of kernels that are shown beside one another, whether anything happens in them or not."""
    loads, mmas = _by_key(words, Words.load_keys, 0, 1), _by_key(words, Words.mma_keys, 1, 2)
    last = next(reversed(mmas), "")
    return [
        *(
            Lane(f"TMA {name}", _FIRST_LOAD if key == LOADS[0] else _FURTHER_LOAD, (key,), "flight")
            for key, name in loads.items()
        ),
        Lane("TMA warp", 10, ("wait_slot",)),
        Lane("MMA warp", 10, PAUSES, "thin"),
        Lane("tcgen05.cp", 10, ("copy",)),
        *(
            Lane(f"tensor {name}", 16, (key, "switch") if key == last else (key,))
            for key, name in mmas.items()
        ),
        Lane("tensor idle", 16, (*PAUSES, "issue"), "pauses"),
        Lane("epilogue", 12, ("epilogue", "wait_result")),
        Lane("TMA store", 10, ("store",)),
    ]


def _by_key(
    words: Sequence[Words], keys: Callable[[Words], Iterator[tuple[str, ...]]], name: int, key: int
) -> dict[str, str]:
    """Key -> the names that it stands for, of all ``words``."""
    found: dict[str, dict[str, None]] = {}
    for one in words:
        for entry in keys(one):
            found.setdefault(entry[key], {})[entry[name]] = None
    return {one: ", ".join(names) for one, names in found.items()}


@dataclasses.dataclass(frozen=True)
class Window:
    """Part of the launch that a picture shows, microseconds since the launch."""

    start: float
    stop: float


def whole_picture(shown: Sequence[Clocked]) -> str:
    """The whole launch of each, to scale."""
    stop = max(one.timeline.end_us for one in shown)
    windows = [Window(0.0, stop)] * len(shown)
    return _picture(shown, windows, 0.0, "µs since the launch, simulated", "timelines of the whole launch")


def head_picture(shown: Sequence[Clocked]) -> str:
    """From the start of the first CTA through the first tiles."""
    stop = max(min(_end_of_tiles(one.timeline), one.timeline.first_mma_us + HEAD_US) for one in shown)
    start = min(one.timeline.launch_us for one in shown)
    windows = [Window(start, stop)] * len(shown)
    return _picture(shown, windows, start, "µs since the launch, simulated", "timelines of the first tiles")


def tail_picture(shown: Sequence[Clocked]) -> str:
    """The last microseconds of each, ends aligned."""
    length = max(min(_last_tile(one.timeline), TAIL_US) for one in shown)
    windows = [Window(one.timeline.end_us - length, one.timeline.end_us) for one in shown]
    return _picture(shown, windows, -length, "µs to the end, simulated", "timelines of the end")


def needs_zoom(shown: Sequence[Clocked]) -> bool:
    return max(one.timeline.end_us for one in shown) > WHOLE_US


def legend_keys(shown: Sequence[Clocked]) -> list[str]:
    """What occurs in the pictures, in the order of the lanes."""
    used = [key for lane in _lanes_of(shown) for key in lane.keys if _used(lane, key, shown)]
    return list(dict.fromkeys(used))


def _end_of_tiles(timeline: Timeline) -> float:
    if len(timeline.tiles) > TILES_IN_HEAD:
        return timeline.tiles[TILES_IN_HEAD]
    return timeline.end_us


def _last_tile(timeline: Timeline) -> float:
    """Microseconds from the start of the last tile's MMAs to the end."""
    return timeline.end_us - timeline.tiles[-1] if timeline.tiles else TAIL_US


def _lanes_of(shown: Sequence[Clocked]) -> list[Lane]:
    """Lanes in which something happens."""
    lanes = lanes_of([one.timeline.words for one in shown])
    return [lane for lane in lanes if any(_used(lane, key, shown) for key in lane.keys)]


def _used(lane: Lane, key: str, shown: Sequence[Clocked]) -> bool:
    return any(lane.spans(one.timeline, key) for one in shown)


def _picture(
    shown: Sequence[Clocked], windows: Sequence[Window], first: float, x_label: str, label: str
) -> str:
    """Blocks of equal height; the axis counts from ``first`` at the left edge."""
    lanes = _lanes_of(shown)
    block = TITLE + sum(lane.height + GAP for lane in lanes) + 8
    chart = Chart(WIDTH, block * len(shown) + FOOT, label, margins=(LEFT, 4, RIGHT, FOOT))
    axis = chart.x_scale(first, first + windows[0].stop - windows[0].start)
    chart.axes(axis, None, x_label)
    for index, (one, window) in enumerate(zip(shown, windows, strict=True)):
        x = Scale(window.start, window.stop, chart.left, chart.right)
        _block(chart, one, x, chart.top + index * block, lanes)
    return str(chart)


def _block(chart: Chart, one: Clocked, x: Scale, top: float, lanes: Sequence[Lane]) -> None:
    time, timeline = one.time, one.timeline
    told = f"{number(time.us)} µs simulated, interval {number(time.low_us)} to {number(time.high_us)}"
    chart.text(chart.left, top + 14, f"{one.label}: {told}", "strong")
    y = top + TITLE
    bottom = y + sum(lane.height + GAP for lane in lanes) - GAP
    edges = itertools.accumulate((lane.height + GAP for lane in lanes), initial=y)
    for lane, edge in zip(lanes, edges, strict=False):
        chart.text(chart.left - 8, edge + lane.height / 2 + 4, lane.name, "tick end")
        chart.line(chart.left, edge + lane.height, chart.right, edge + lane.height, "grid")
    _marks(chart, timeline, x, y, bottom)
    for lane in lanes:
        draw = _flight if lane.how == "flight" else _bars
        with chart.group("thin" if lane.how == "thin" else "lane"):
            draw(chart, lane, timeline, x, y)
        y += lane.height + GAP


def _marks(chart: Chart, timeline: Timeline, x: Scale, top: float, bottom: float) -> None:
    """The time before the first CTA, the starts of the tiles, the end."""
    if x.low < timeline.launch_us:
        width = x(timeline.launch_us) - x(x.low)
        chart.bar(x(x.low), top, width, bottom - top, "t-launch", f"launch: {number(timeline.launch_us)} µs")
        if width > 50:
            chart.text(x(x.low) + width / 2, (top + bottom) / 2, "launch", "inside mid")
    room = (x(timeline.tiles[1]) - x(timeline.tiles[0])) if len(timeline.tiles) > 1 else chart.width
    for index, start in enumerate(timeline.tiles, start=1):
        if x.low <= start < x.high:
            chart.line(x(start), top - 8, x(start), bottom, "tile", f"tile {index} of this cluster")
            if room > 44:
                chart.text(min(x(start) + 2, chart.right - 30), top - 3, f"tile {index}", "count")
    if x.low < timeline.end_us <= x.high:
        chart.line(x(timeline.end_us), top - 4, x(timeline.end_us), bottom, "stop")


def _inside(spans: Sequence[Span], x: Scale) -> list[Span]:
    return [span for span in spans if span[1] > x.low and span[0] < x.high]


def _bars(chart: Chart, lane: Lane, timeline: Timeline, x: Scale, top: float) -> None:
    """Each span, or stacked shares of a bin's time where spans are too many."""
    inside = {key: found for key in lane.keys if (found := _inside(lane.spans(timeline, key), x))}
    width = chart.right - chart.left
    per_px = (x.high - x.low) / width
    joined = {key: merged(spans, 0.2 * per_px) for key, spans in inside.items()}
    if sum(map(len, joined.values())) * SPAN_PX <= width:
        for key, spans in joined.items():
            rects = [(x(begin), top, x(end) - x(begin), lane.height) for begin, end in spans]
            chart.boxes(rects, f"t-{key}", _tip(lane, key, timeline))
        return
    bins = int(width / BIN_PX)
    keys = list(inside)
    stacked = [shares(inside[key], x.low, x.high, bins) * lane.height for key in keys]
    for index in reversed(range(len(stacked))):  # the sum of all is drawn first, its parts over it
        heights = sum(stacked[1 : index + 1], start=stacked[0]).clip(0, lane.height)
        key = keys[index]
        tip = _tip(lane, key, timeline)
        chart.area(chart.left, width / bins, heights.tolist(), top + lane.height, f"t-{key}", tip)


def _flight(chart: Chart, lane: Lane, timeline: Timeline, x: Scale, top: float) -> None:
    """Loads in rows, a row for each that is in flight at the same time; from afar, how many there are."""
    (key,) = lane.keys
    loads = slots(timeline.spans[key], timeline.loads_per_turn if key == LOADS[0] else 1)
    rows = packed(loads)
    depth = max(rows, default=0) + 1
    visible = [
        (span, row) for span, row in zip(loads, rows, strict=True) if span[1] > x.low and span[0] < x.high
    ]
    width = chart.right - chart.left
    if len(visible) * SPAN_PX * 2 <= width * max(1, depth / 2):
        each = lane.height / depth
        rects = [
            (x(begin), top + row * each, x(end) - x(begin), max(each - 0.6, 0.6))
            for (begin, end), row in visible
        ]
        chart.boxes(rects, f"t-{key}", _tip(lane, key, timeline))
        return
    bins = int(width / BIN_PX)
    heights = shares([span for span, _ in visible], x.low, x.high, bins) * (lane.height / depth)
    chart.area(
        chart.left, width / bins, heights.tolist(), top + lane.height, f"t-{key}", _tip(lane, key, timeline)
    )


def _tip(lane: Lane, key: str, timeline: Timeline) -> str:
    spans = lane.spans(timeline, key)
    total = sum(end - begin for begin, end in (merged(spans) if key.startswith("tma") else spans))
    return f"{timeline.words.names()[key]}: {number(total)} µs in all, simulated"
