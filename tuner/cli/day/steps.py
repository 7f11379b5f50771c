"""What ``day-one`` does, in order: selfcheck, measure, calibrate, peers. Which command each is, and what came of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernel_space.core import registry
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from tuner.cli.options.shapes import SHAPES_KEY
from tuner.cli.tune.peers import has_peers
from tuner.devices.card import CudaDevice
from tuner.devices.select import has_simulator, simulated_names
from tuner.tune.needs import missing_to_tune

RESULTS, SHAPES, CAPTURE = "results", "shapes.yaml", "capture.json"
BATCHES = (16, 256)  # of the usual problem, besides its own
START_S, FINAL_S = 30.0, 15.0  # of a tune: until it tries, and per problem from the search to the files
LEAST_S = 10.0


class Skipped(Exception):
    """The step does not apply here; ``str()`` says why. That is no failure."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Visit:
    """One day: a card, its problems, the folder. ``objects``: of ``compile-only``; ``operators``: further folders."""

    device: CudaDevice
    problems: tuple[Problem, ...]
    folder: Path
    objects: Path | None
    operators: tuple[str, ...]

    @property
    def results(self) -> Path:
        return self.folder / RESULTS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """``arguments``: of the command, for so many seconds; raises ``Skipped``, and ``InputError`` where it would fail.
    ``headline``: one line of what it printed."""

    name: str
    arguments: Callable[[Visit, float], list[str]]
    headline: Callable[[dict[str, Any]], str]


def usual_problems(op: str) -> tuple[Problem, ...]:
    """The operator's example, and it at smaller batches. Raises ``InputError`` for an operator without one."""
    kind = registry.operator(op).problem
    if not kind.example:
        raise InputError(f"{op} has no usual problem: say which with --shape {kind.form()}")
    example = kind.parse(kind.example)
    sizes = [name for name, form in kind.forms().items() if form.batch]
    small = (
        [dataclasses.replace(example, **dict.fromkeys(sizes, batch)) for batch in BATCHES] if sizes else []
    )
    return tuple(dict.fromkeys([*small, example]))


def shapes_text(problems: Sequence[Problem]) -> str:
    """For ``--shapes``."""
    entries = [{"op": one.operator, "shape": str(one), **one.options} for one in problems]
    return json.dumps({SHAPES_KEY: entries}, indent=1) + "\n"


def _selfcheck(visit: Visit, limit_s: float) -> list[str]:
    return ["selfcheck", "--capture", str(visit.folder / CAPTURE), "--json"]


def _measure(visit: Visit, limit_s: float) -> list[str]:
    """A tune where the compiler is, else what was compiled elsewhere."""
    target = [f"--device=cuda:{visit.device.card.index}", "--out", str(visit.results.absolute()), "--json"]
    named = ["--shapes", str(visit.folder / SHAPES), *_operators(visit)]
    if visit.objects is not None:
        return ["measure", str(visit.objects), *named, *target, "--budget-seconds", f"{limit_s:.0f}"]
    if missing := missing_to_tune():
        raise InputError(
            f"{missing} here: run compile-only where it is, and day-one --objects DIR with its folder"
        )
    each = max(LEAST_S, (limit_s - START_S) / len(visit.problems) - FINAL_S)
    return ["tune", *named, *target, "--timeout", f"{each:.0f}"]


def _calibrate(visit: Visit, limit_s: float) -> list[str]:
    """Says what these times make of the simulator's constants; the installation's own stay as they are."""
    if not has_simulator(visit.device.arch):
        raise Skipped(
            f"the simulator is of {simulated_names()}, {visit.device.name} has nothing to calibrate"
        )
    trials = sorted(visit.results.glob(f"{visit.device.name}/*/*/trials.parquet"))
    if not trials:
        raise InputError("no measured trials to calibrate with: the step measure left none")
    return ["calibrate", *map(str, trials), "--dry-run", "--json"]


def _peers(visit: Visit, limit_s: float) -> list[str]:
    compared = [one for one in visit.problems if has_peers(one)]
    if not compared:
        raise Skipped(f"{visit.problems[0].operator} names no peers")
    shapes = visit.folder / SHAPES
    target = [f"--device=cuda:{visit.device.card.index}", "--out", str(visit.results.absolute()), "--json"]
    objects = [] if visit.objects is None else ["--objects", str(visit.objects)]
    return ["peers", "--shapes", str(shapes), *_operators(visit), *target, *objects]


def _operators(visit: Visit) -> list[str]:
    return [part for folder in visit.operators for part in ("--operators", str(folder))]


def _agreed(document: dict[str, Any]) -> str:
    counts = {word: count for word, count in document["counts"].items() if count}
    new = len(document["new_differences"])
    return (
        f"{', '.join(f'{count} {word}' for word, count in counts.items())}; {new or 'no'} new difference(s)"
    )


def _tuned(document: dict[str, Any]) -> str:
    return "; ".join(_row(result) for result in document["results"])


def _row(result: dict[str, Any]) -> str:
    if not result["winner"]:
        return f"{result['shape']}: no winner"
    default = result["default"]
    margin = default and default["margin"]
    beaten = "" if margin is None else f", default {margin:+.1%}"
    return f"{result['shape']}: {result['winner']['us']:.2f} us{beaten}"


def _calibrated(document: dict[str, Any]) -> str:
    return (
        f"{document['rows']} times, {document['survivors']} of {document['pool']} sets of constants survive, "
        f"error {document['error_before']:.1%} before and {document['error_after']:.1%} after"
    )


def _compared(document: dict[str, Any]) -> str:
    return "; ".join(filter(None, map(_nearest, document["results"])))


def _nearest(result: dict[str, Any]) -> str:
    rows = {row["peer"]: row for row in result["rows"]}
    own = next((row for name, row in rows.items() if name == row["op"]), None)
    others = [row for row in rows.values() if row is not own]
    if not others:
        return ""
    best = min(others, key=lambda row: row["us"])
    ratio = "" if own is None else f" ({best['us'] / own['us']:.2f} x ours)"
    return f"{best['problem']}: best peer {best['peer']} {best['us']:.2f} us{ratio}"


STEPS = (
    Step(name="selfcheck", arguments=_selfcheck, headline=_agreed),
    Step(name="measure", arguments=_measure, headline=_tuned),
    Step(name="calibrate", arguments=_calibrate, headline=_calibrated),
    Step(name="peers", arguments=_peers, headline=_compared),
)
