"""The roofline as a picture: every candidate against what the machine could do at best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tuner.report.data.roofline import COLOURS, Point, Roof, counts_fill, groups, points, roofs
from tuner.report.data.sweep import Sweep, differences, dram_bytes, microseconds, operations, tflops, timed
from tuner.report.marks.svg import Chart, Scale, escape, number
from tuner.trials.outcome import Trial

WIDTH, HEIGHT = 1040, 430
LOW = 32.0  # speeds below this part of the best are drawn at the lower edge
NAME_PX = 13.0  # between two names
TOLD = 120  # so many of the fastest have a tooltip, the others are dots of a few bytes


def roofline_chart(sweep: Sweep, winner: Trial, marked: Mapping[str, Trial]) -> str:
    """``marked``: trials that get a ring and their name, beside the winner. x: FLOP per byte brought into SMEM;
    the diamond is the winner by the bytes that must cross DRAM once."""
    chart = Chart(WIDTH, HEIGHT, "roofline", margins=(76, 14, 24, 46))
    found = points(sweep.problem, timed(sweep.trials))
    machine = roofs(sweep.problem, sweep.known_class, sweep.sm_count)
    by_dram = operations(sweep.problem) / dram_bytes(sweep.problem)
    x, y = _scales(chart, found, machine, by_dram)
    chart.axes(x, y, "useful FLOP per byte moved", f"{winner.kind} useful TFLOP/s")
    for roof in machine:
        _draw_roof(chart, roof, machine, x, y)
    _draw_points(chart, found, winner, x, y)
    _draw_winner(chart, sweep, winner, by_dram, x, y)
    _draw_rings(chart, dict(zip(marked, points(sweep.problem, list(marked.values())), strict=True)), x, y)
    return str(chart)


def roofline_legend(sweep: Sweep) -> str:
    found = groups(timed(sweep.trials))
    items = "".join(f'<span><i class="pt {css}"></i>{escape(name)}</span>' for name, css in found.items())
    return f'<p class="legend">{items}</p>'


def _scales(
    chart: Chart, found: Sequence[Point], machine: Sequence[Roof], by_dram: float
) -> tuple[Scale, Scale]:
    across = [point.intensity for point in found] + [by_dram]
    up = [point.tflops for point in found] + [roof.tera for roof in machine if not roof.per_byte]
    up += [roof.at(by_dram) for roof in machine if roof.css == "dram"] if len(up) == len(found) else []
    low = max(min(up), max(point.tflops for point in found) / LOW)
    x = chart.x_scale(min(across) / 2.2, max(across) * 2.2, log=True)
    return x, chart.y_scale(low / 1.6, max(up) * 1.5, log=True)


def _draw_roof(chart: Chart, roof: Roof, machine: Sequence[Roof], x: Scale, y: Scale) -> None:
    """A line and its name, which has the source as its tooltip."""
    unit = "TB/s" if roof.per_byte else "TFLOP/s"
    about = f"{roof.name}: {number(roof.tera)} {unit}, {roof.kind}: {roof.source}"
    label = f"{roof.name} {number(roof.tera)} {unit} ({roof.kind})"
    css = f"roof {roof.css}".strip()
    if not roof.per_byte:
        chart.line(x(x.low), y(roof.tera), x(x.high), y(roof.tera), css)
        # the upper of two ceilings has its name above, the lower one below
        highest = all(other.tera <= roof.tera for other in machine if not other.per_byte)
        chart.text(chart.right, y(roof.tera) + (-6 if highest else 15), label, "note end", about)
        return
    ceiling = max((other.tera for other in machine if not other.per_byte), default=math.inf)
    start = max(x.low, y.low / roof.tera)
    end = min(x.high, ceiling / roof.tera, y.high / roof.tera)
    if start >= end:
        return
    (x1, y1), (x2, y2) = (x(start), y(roof.at(start))), (x(end), y(roof.at(end)))
    chart.line(x1, y1, x2, y2, css)
    _name_slope(chart, label, about, (x1, y1), (x2, y2), below=roof.css == "smem")


def _name_slope(
    chart: Chart, label: str, about: str, low: tuple[float, float], high: tuple[float, float], *, below: bool
) -> None:
    """Along the line; the lower of two close lines has its name below."""
    run, rise = high[0] - low[0], high[1] - low[1]
    length = math.hypot(run, rise)
    away = 14 if below else -6
    at_x = low[0] + 0.05 * run - away * rise / length
    at_y = low[1] + 0.05 * rise + away * run / length
    chart.text(at_x, at_y, label, "note", about, turn=math.degrees(math.atan2(rise, run)))


def _draw_points(chart: Chart, found: Sequence[Point], winner: Trial, x: Scale, y: Scale) -> None:
    order = sorted(found, key=lambda point: -point.tflops)
    for group in COLOURS:
        rest = [(x(point.intensity), y(point.tflops)) for point in order[TOLD:] if point.group == group]
        if rest:
            chart.cloud(rest, f"cloud {group}")
    for point in reversed(order[:TOLD]):
        chart.dot(x(point.intensity), y(point.tflops), 2.8, f"pt {point.group}", _tip(point, winner))


def _tip(point: Point, winner: Trial) -> str:
    trial = point.trial
    changed = " ".join(
        f"{name}={value}" for name, value in differences(trial.resolved, winner.resolved).items()
    )
    head = f"#{trial.number}: {number(microseconds(trial))} µs, {number(point.tflops)} TFLOP/s"
    return f"{head}; {changed}" if changed else f"{head}; winner: {trial.resolved}"


def _draw_winner(chart: Chart, sweep: Sweep, winner: Trial, by_dram: float, x: Scale, y: Scale) -> None:
    speed = tflops(sweep.problem, microseconds(winner))
    if not counts_fill(sweep.problem, winner):
        chart.dot(x(by_dram), y(speed), 5, "winner", f"winner: {number(by_dram)} FLOP/byte")
        chart.text(x(by_dram) + 9, y(speed) - 5, "winner", "strong")
        return
    by_fill = points(sweep.problem, [winner])[0].intensity
    chart.line(x(by_fill), y(speed), x(by_dram), y(speed), "reference")
    chart.dot(x(by_fill), y(speed), 5, "winner", f"winner by SMEM fill: {number(by_fill)} FLOP/byte")
    chart.text(x(by_fill) + 9, y(speed) - 5, "winner", "strong")
    chart.diamond(x(by_dram), y(speed), 6, "dram", f"winner by DRAM bytes: {number(by_dram)} FLOP/byte")
    chart.text(x(by_dram), y(speed) + 20, "winner by DRAM bytes", "note mid")


def _draw_rings(chart: Chart, named: Mapping[str, Point], x: Scale, y: Scale) -> None:
    """A ring and its name to the left; names keep their distance where rings lie close."""
    last = -math.inf
    for name, point in sorted(named.items(), key=lambda item: -item[1].tflops):
        about = f"{name}: #{point.trial.number}, {number(microseconds(point.trial))} µs"
        at_x, at_y = x(point.intensity), y(point.tflops)
        last = max(at_y, last + NAME_PX)
        chart.dot(at_x, at_y, 5.5, "ring", about)
        chart.line(at_x - 6, at_y, at_x - 16, last, "axis")
        chart.text(at_x - 19, last + 4, name, "note end", about)
