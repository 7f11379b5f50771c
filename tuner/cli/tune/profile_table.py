"""What ``profile`` shows: a row per quantity, a column per config, and how far they are apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import Problem
from tuner.card.counters.calls import CallCounts
from tuner.card.counters.quantities import QUANTITIES
from tuner.card.counters.utilization import describe_rates
from tuner.cli.options import text
from tuner.devices.device import Device

NOTHING = "n/a"
_WIDTH, _COLUMN = 24, 14


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predicted:
    """Of the clock, simulated: microseconds with their interval, what bounds them, and those of tensor work."""

    us: float
    low_us: float
    high_us: float
    bound: str
    tensor_us: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Side:
    """One profiled config. ``worst``: error of its first call in tolerances. ``mfu``: None without tensor work.
    ``predicted``: or why it is not."""

    name: str
    config: KernelConfig
    source: str
    worst: float
    counts: CallCounts
    mfu: float | None
    predicted: Predicted | str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One quantity of every side; None: not counted. ``unit``: us, GHz, % or nothing."""

    label: str
    unit: str
    values: tuple[float | None, ...]

    def cells(self) -> tuple[str, ...]:
        """A cell per side and, of two, by how much the second differs from the first."""
        return (*(shown(value, self.unit) for value in self.values), *self._apart())

    def _apart(self) -> tuple[str, ...]:
        if len(self.values) != 2:
            return ()
        first, second = self.values
        if first is None or second is None:
            return (NOTHING,)
        if self.unit == "%":  # points: a share of a share misleads
            return (f"{second - first:+.1f} points",)
        return (f"{second / first - 1:+.1%}" if first else NOTHING,)


def shown(value: float | None, unit: str) -> str:
    if value is None:
        return NOTHING
    return {"us": f"{value:.2f} us", "GHz": f"{value:.3f} GHz", "%": f"{value:.1f} %"}.get(
        unit, f"{value:,.0f}"
    )


def record(side: Side) -> dict[str, Any]:
    """For ``--json``."""
    return {
        "name": side.name,
        "config": str(side.config),
        "config_from": side.source,
        "worst_error_in_tolerances": side.worst,
        "calls": side.counts.calls,
        "duration_us": side.counts.duration_us,
        "mfu": side.mfu,
        "kernels": [{"kernel": one.kernel, **one.values} for one in side.counts.kernels],
        "predicted": side.predicted if isinstance(side.predicted, str) else vars(side.predicted),
    }


def tables(sides: Sequence[Side]) -> Iterator[tuple[str, list[Row]]]:
    """(heading, rows): what is of a whole call, then each kernel's. Configs whose calls are of different kernels have
    no kernel beside the other's: theirs follow one another."""
    yield "", list(_of_the_call(sides))
    names = [[one.kernel for one in side.counts.kernels] for side in sides]
    if len({len(one) for one in names}) == 1:
        for place, kernels in enumerate(zip(*names, strict=True)):
            heading = " / ".join(dict.fromkeys(kernels))
            yield heading, list(_of_a_kernel([side.counts.kernels[place].values for side in sides]))
        return
    for side in sides:
        for one in side.counts.kernels:
            yield f"{side.name}: {one.kernel}", list(_of_a_kernel([one.values]))


def _of_the_call(sides: Sequence[Side]) -> Iterator[Row]:
    yield Row(label="duration of a call", unit="us", values=tuple(side.counts.duration_us for side in sides))
    if any(side.mfu is not None for side in sides):
        share = tuple(None if side.mfu is None else 100 * side.mfu for side in sides)
        yield Row(label="MFU at that clock", unit="%", values=share)
    predicted = [side.predicted if isinstance(side.predicted, Predicted) else None for side in sides]
    if any(predicted):
        times = tuple(None if one is None else one.us for one in predicted)
        yield Row(label="duration, simulated", unit="us", values=times)
        busy = tuple(None if one is None else 100 * one.tensor_us / one.us for one in predicted)
        yield Row(label="tensor pipe, simulated", unit="%", values=busy)


def _of_a_kernel(values: Sequence[Mapping[str, float | None]]) -> Iterator[Row]:
    for quantity in QUANTITIES:
        row = tuple(one[quantity.key] for one in values)
        yield Row(label=quantity.label, unit=quantity.unit, values=row)


def print_sides(problem: Problem, sides: Sequence[Side], device: Device, profiler: str) -> None:
    text.print_block(_about(problem, sides, device, profiler))
    for heading, rows in tables(sides):
        print(f"\n{heading[:100]}" if heading else "")
        names = ["", *(side.name for side in sides), *(["B to A"] if len(sides) == 2 else [])]
        if not heading:
            print(_line(names))
        for row in rows:
            print(_line((row.label, *row.cells())))


def _line(cells: Sequence[str]) -> str:
    first, *rest = cells
    return f"{first:<{_WIDTH}}" + "".join(f"{cell:>{_COLUMN}}" for cell in rest)


def _about(
    problem: Problem, sides: Sequence[Side], device: Device, profiler: str
) -> Iterator[tuple[str, object]]:
    yield "problem", text.describe_problem(problem)
    yield "device", f"{device.name} ({device.arch.name}, {device.sm_count} SMs)"
    for side in sides:
        yield side.name, side.config
        yield "", f"{side.source}; first call right, worst error {side.worst:.2f} x tolerance"
    yield (
        "profiled",
        f"medians of {sides[0].counts.calls} calls, {profiler}, clocks as they are, caches flushed",
    )
    if rates := describe_rates(problem, device.arch, device.sm_count):
        yield "MFU", f"operations of the problem over {rates}"
    for side in sides:
        yield "simulated", f"{side.name}: {_simulated(side.predicted)}"


def _simulated(predicted: Predicted | str) -> str:
    if isinstance(predicted, str):
        return f"not: {predicted}"
    time = text.describe_time(predicted.us, predicted.low_us, predicted.high_us, "simulated")
    return f"{time}, bound by {predicted.bound}"


def markdown(problem: Problem, sides: Sequence[Side], device: Device, profiler: str) -> str:
    """The same as a page."""
    names = [side.name for side in sides] + (["B to A"] if len(sides) == 2 else [])
    lines = [f"# Profile of {text.describe_problem(problem)}", ""]
    lines += [f"- {label or 'from'}: {value}" for label, value in _about(problem, sides, device, profiler)]
    for heading, rows in tables(sides):
        lines += [
            "",
            f"## {heading or 'The call'}",
            "",
            _cells(["", *names]),
            _cells(["---"] * (len(names) + 1)),
        ]
        lines += [_cells([row.label, *row.cells()]) for row in rows]
    return "\n".join(lines) + "\n"


def _cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
