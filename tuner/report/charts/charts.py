"""The charts of a report as inline SVG. Every time axis names the kind of its times."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.report.data.sweep import (
    Importance,
    Sweep,
    ValueTimes,
    convergence,
    default_trial,
    failure_reason,
    failure_status,
    microseconds,
    time_terms,
    timed,
    times_per_value,
)
from tuner.report.marks.svg import Chart, Scale, escape, number
from tuner.trials.outcome import Origin, Trial

WIDTH = 1040
CLIP = 8.0  # times beyond this multiple of the best are drawn at the upper edge
TEXT_PX = 6.4  # width of a tick label's character
MIN_COUNT_PX = 42  # room for "n=123" below a value


def convergence_chart(sweep: Sweep) -> str:
    """Time of every trial in the order of the sweep, the best so far, and where trials failed."""
    usable = timed(sweep.trials)
    trials = sweep.evaluated
    places = {id(trial): place for place, trial in enumerate(trials, start=1)}
    chart = Chart(WIDTH, 350, "convergence", margins=(64, 20, 16, 46))
    x = chart.x_scale(1, max(2, len(trials)))
    x.ticks = [tick for tick in x.ticks if tick == round(tick)]
    y = _time_scale(chart, usable)
    chart.axes(x, y, "trial, in the order in which they were finished", f"{usable[0].kind} time, µs")
    if default := default_trial(sweep.trials):
        at = y(microseconds(default))
        chart.line(chart.left, at, chart.right, at, "reference")
        chart.text(chart.right, at - 5, f"default rule {number(microseconds(default))} µs", "note end")
    _failed_ticks(chart, trials, x)
    beyond = sum(microseconds(trial) > y.high for trial in usable)
    if beyond:
        chart.text(
            chart.right, chart.top - 3, f"{beyond} above {number(y.high)} µs, drawn at the edge", "note end"
        )
    for trial in usable:
        css = "pt" if trial.origin is Origin.SAMPLED else f"pt {trial.origin.value}"
        chart.dot(x(places[id(trial)]), y(microseconds(trial)), 2.6, css, tip(trial))
    _best_so_far(chart, convergence(trials), x, y)
    return str(chart)


def _best_so_far(chart: Chart, steps: list[tuple[int, float]], x: Scale, y: Scale) -> None:
    corners: list[tuple[float, float]] = []
    for place, us in steps:
        if corners:
            corners.append((x(place), corners[-1][1]))
        corners.append((x(place), y(us)))
    corners.append((chart.right, corners[-1][1]))
    chart.path(corners, "best")
    last_place, last = steps[-1]
    chart.dot(x(last_place), y(last), 4.5, "winner", f"best: {number(last)} µs at trial {last_place}")


def _failed_ticks(chart: Chart, trials: Sequence[Trial], x: Scale) -> None:
    for place, trial in enumerate(trials, start=1):
        if not trial.ok:
            what = f"#{trial.number} {failure_status(trial)}: {failure_reason(trial)[:80]}"
            chart.line(x(place), chart.bottom - 9, x(place), chart.bottom, "failed", what)


def _time_scale(chart: Chart, usable: Sequence[Trial]) -> Scale:
    times = [microseconds(trial) for trial in usable]
    best = min(times)
    worst = min(max(times), CLIP * best)
    log = worst > 2 * best
    pad = (worst / best) ** 0.06 if log else 1.0
    slack = 0 if log else 0.06 * (worst - best)
    return chart.y_scale(best / pad - slack, worst * pad + slack, log=log)


def knob_panel(sweep: Sweep, knob: str) -> str:
    """Times per value of one knob: box of quartiles, whiskers to the extremes, the best marked."""
    groups = times_per_value(sweep.trials, knob)
    chart = Chart(336, 212, f"time per value of {knob}", margins=(40, 10, 10, 44))
    y = _time_scale(chart, timed(sweep.trials))
    chart.axes(None, y)
    step = (chart.right - chart.left) / len(groups)
    crowded = step < TEXT_PX * max(len(group.value) for group in groups)
    best = min(groups, key=lambda group: group.low)
    for index, group in enumerate(groups):
        middle = chart.left + (index + 0.5) * step
        _box(chart, group, middle, min(18.0, step * 0.3), y, best=group is best)
        if crowded:
            chart.text(middle + 4, chart.bottom + 12, group.value, "tick end", turn=-38)
            continue
        chart.text(middle, chart.bottom + 15, group.value, "tick mid")
        if step >= MIN_COUNT_PX:
            chart.text(middle, chart.bottom + 29, f"n={group.count}", "count mid")
    return str(chart)


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


def importance_chart(importance: Importance) -> str:
    shares = list(importance.shares.items())
    chart = Chart(652, 24 * len(shares) + 56, "knob importance", margins=(168, 4, 60, 46))
    x = chart.x_scale(0, max(share for _, share in shares) * 100, ticks=5)
    chart.axes(x, None, "share of explained differences, %")
    for index, (name, share) in enumerate(shares):
        top = chart.top + 24 * index + 4
        chart.bar(chart.left, top, x(share * 100) - chart.left, 15, "fill", f"{name}: {share:.1%}")
        chart.text(chart.left - 8, top + 12, name, "tick end")
        chart.text(x(share * 100) + 6, top + 12, f"{share:.1%}", "tick")
    return str(chart)


def terms_chart(candidates: Sequence[tuple[str, Trial]]) -> str:
    """Time by cause of a few named trials as stacked bars; empty when their evidence holds no breakdown."""
    shown = [(name, trial, terms) for name, trial in candidates if (terms := time_terms(trial))]
    if not shown:
        return ""
    names = list(dict.fromkeys(term for _, _, terms in shown for term in terms))
    chart = Chart(WIDTH, 46 * len(shown) + 50, "time by cause", margins=(96, 6, 74, 40))
    x = chart.x_scale(0, max(microseconds(trial) for _, trial, _ in shown))
    chart.axes(x, None, f"{shown[0][1].kind} time, µs")
    for index, (name, trial, terms) in enumerate(shown):
        top = chart.top + 46 * index + 6
        chart.text(chart.left - 8, top + 21, name, "tick end")
        chart.text(x(microseconds(trial)) + 8, top + 21, f"{number(microseconds(trial))} µs", "strong")
        _stack(chart, terms, names, x, top)
    return str(chart) + _legend(names)


def _stack(chart: Chart, terms: dict[str, float], names: Sequence[str], x: Scale, top: float) -> None:
    start = 0.0
    for term, us in terms.items():
        width = x(start + us) - x(start)
        chart.bar(x(start), top, width, 32, f"c{names.index(term) % 12}", f"{term}: {number(us)} µs")
        if width > 7 * len(term) + 8:
            chart.text(x(start) + width / 2, top + 20, term, "inside mid")
        start += us


def budget_chart(title: str, unit: str, rows: Sequence[tuple[str, int]], limit: int) -> str:
    """One budget as a stacked bar up to its limit."""
    chart = Chart(WIDTH, 92, title, margins=(96, 8, 24, 46))
    x = chart.x_scale(0, limit)
    chart.axes(x, None, f"{title}, {unit}")
    chart.text(chart.left - 8, chart.top + 20, title.split()[0], "tick end")
    chart.bar(chart.left, chart.top, chart.right - chart.left, 30, "empty", f"limit {limit} {unit}")
    start = 0
    for index, (name, size) in enumerate(rows):
        if size <= 0:  # columns that two allocations share
            start += size
            continue
        width = x(start + size) - x(start)
        chart.bar(x(start), chart.top, width, 30, f"c{index % 12}", f"{name}: {size} {unit}")
        if width > 7 * len(name) + 8:
            chart.text(x(start) + width / 2, chart.top + 19, name, "inside mid")
        start += size
    return str(chart)


def _legend(names: Sequence[str]) -> str:
    entries = (
        f'<span><i class="c{index % 12}"></i>{escape(name)}</span>' for index, name in enumerate(names)
    )
    return f'<p class="legend">{"".join(entries)}</p>'


def tip(trial: Trial) -> str:
    return f"#{trial.number}: {number(microseconds(trial))} µs"
