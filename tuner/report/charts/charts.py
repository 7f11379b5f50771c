"""Pictures that stand in a page as they are: boxes of times per knob value, time by cause."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.report.charts.bars import CSS_COLOURS, legend_of, stacked
from tuner.report.data.sweep import ValueTimes, microseconds, time_terms, timed, times_per_value
from tuner.report.marks.svg import Chart, Scale, number
from tuner.trials.outcome import Trial

CLIP = 8.0  # times beyond this multiple of the best are drawn at the upper edge
TEXT_PX = 7.2  # width of a tick label's character
PANEL_WIDTH, PANEL_LEFT, PANEL_RIGHT = 336, 40, 10
MOST_CHARACTERS = 14  # of a value
TURN = 60  # degrees, of labels that have no room side by side
MIN_COUNT_PX = 42  # room for "n=123" below a value


def _time_scale(chart: Chart, usable: Sequence[Trial]) -> Scale:
    times = [microseconds(trial) for trial in usable]
    best = min(times)
    worst = min(max(times), CLIP * best)
    log = worst > 2 * best
    pad = (worst / best) ** 0.06 if log else 1.0
    slack = 0 if log else 0.06 * (worst - best)
    return chart.y_scale(best / pad - slack, worst * pad + slack, log=log)


def knob_panel(trials: Sequence[Trial], knob: str) -> str:
    """Times per value of one knob among ``trials``, which compare: box of quartiles, whiskers to the extremes, the best
    marked."""
    groups = times_per_value(trials, knob)
    step = (PANEL_WIDTH - PANEL_LEFT - PANEL_RIGHT) / len(groups)
    longest = TEXT_PX * max(len(_cut(group.value)) for group in groups)
    crowded = step < longest
    foot = max(44, math.ceil(longest * math.sin(math.radians(TURN))) + 16) if crowded else 44
    chart = Chart(
        PANEL_WIDTH, 168 + foot, f"time per value of {knob}", margins=(PANEL_LEFT, 10, PANEL_RIGHT, foot)
    )
    y = _time_scale(chart, timed(trials))
    chart.axes(None, y)
    best = min(groups, key=lambda group: group.low)
    for index, group in enumerate(groups):
        middle = chart.left + (index + 0.5) * step
        _box(chart, group, middle, min(18.0, step * 0.3), y, best=group is best)
        if crowded:
            chart.text(
                middle + 4, chart.bottom + 12, _cut(group.value), "tick end", _whole(group.value), turn=-TURN
            )
            continue
        chart.text(middle, chart.bottom + 15, _cut(group.value), "tick mid", _whole(group.value))
        if step >= MIN_COUNT_PX:
            chart.text(middle, chart.bottom + 29, f"n={group.count}", "count mid")
    return str(chart)


def _cut(value: str) -> str:
    """Its beginning and its end: values of one knob often differ in one of them."""
    return value if len(value) <= MOST_CHARACTERS else f"{value[:7]}…{value[-6:]}"


def _whole(value: str) -> str:
    """For a tooltip, where the value itself is cut."""
    return "" if _cut(value) == value else value


def _box(chart: Chart, group: ValueTimes, middle: float, half: float, y: Scale, *, best: bool) -> None:
    about = (
        f"{group.value}: {group.count} trials, best {number(group.low)}, median {number(group.median)}, "
        f"worst {number(group.high)} µs"
    )
    if group.count > 1:
        top, bottom = y(group.quartile_3), y(group.quartile_1)
        chart.line(middle, y(group.low), middle, y(group.high), "whisker")
        chart.bar(middle - half, top, 2 * half, max(1.0, bottom - top), "box", about)
        chart.line(middle - half, y(group.median), middle + half, y(group.median), "median")
    chart.dot(
        middle, y(group.low), 4 if best else 3, "winner" if best else "low", about if group.count == 1 else ""
    )


def terms_bars(candidates: Sequence[tuple[str, Trial]]) -> str:
    """Time by cause of a few named trials as stacked bars; empty when their evidence holds no breakdown."""
    shown = [(name, trial, terms) for name, trial in candidates if (terms := time_terms(trial))]
    if not shown:
        return ""
    names = list(dict.fromkeys(term for _, _, terms in shown for term in terms))
    colours = {name: f"c{index % CSS_COLOURS}" for index, name in enumerate(names)}
    lines = [
        (
            name,
            [(term, us, colours[term]) for term, us in terms.items()],
            f"{number(microseconds(trial))} µs",
        )
        for name, trial, terms in shown
    ]
    whole = max(microseconds(trial) for _, trial, _ in shown)
    unit = f"µs {shown[0][1].kind}"
    return stacked(lines, whole, unit) + legend_of((css, name) for name, css in colours.items())
