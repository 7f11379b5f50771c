"""How soon a search from empty results comes within 1 % of the best that is known, on every committed b200 problem.

    python -m benchmarks.bench_search [--op NAME] [--shape M,K,N,R ...] [--seeds 0,1,2] [--trials 200]
        [--ways search,random,tpe] [--until-close] [--jobs N] [--budget SECONDS] [--known | --renew] [--times FOLDER]
        [--csv FILE]

``search`` is what ``tune.py`` does without any row; ``random`` takes legal points as they come; ``tpe`` is Optuna's
sampler alone. Times are simulated and kept in ``benchmarks/data/search_times`` (``search_times.py``), so that what was
asked before costs nothing. ``--known``: nothing is compiled, and a search ends where it asks for what no file holds; so
it is for files of another clock too. ``--jobs``: so many processes compile, and twice as many search
(``search_jobs.py``); ``--budget``: after so many seconds what is known is printed and written. The same command goes on
from there. ``--until-close``: a search ends where it is within 1 % of the best that is known by then, which costs a
small part of all its trials. Where a later one finds better, the same command goes on with those that no longer are
within 1 %. None ends early while the row has no time: all that is known might be what it has found itself. ``--csv``:
the curves, one line for each trial: operator, problem, way, seed, trial, best so far in microseconds, regret (best so
far / best known - 1).

A ``--shape`` needs no row. The best known is the least of the committed row and of all times in the file. Exit code 1
if a problem is left where ``search`` is within 1 % in fewer than two thirds of the seeds.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import functools
import io
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.search_jobs import Jobs, Run, files
from benchmarks.search_times import FOLDER, Times, key_of
from benchmarks.search_ways import WAYS, Found, NotKnown
from kernel_space.core import registry
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators import DEFAULT
from kernel_space.places import shipped
from tuner.devices.classes import DEVICE_CLASSES
from tuner.files.store import atomic_write
from tuner.tables.dispatch import DispatchTable

DEVICE = "b200"
CLOSE = 1.01
EARLY = 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """Best so far, in microseconds, after each trial of one search; ``whole``: it had all its trials."""

    problem: Problem
    way: str
    seed: int
    best: Sequence[float]
    whole: bool

    def after(self, trials: int) -> float:
        return self.best[min(trials, len(self.best)) - 1]

    def within(self, us: float) -> int | None:
        """Trials until the best is no longer than ``us``."""
        return next((number for number, best in enumerate(self.best, 1) if best <= us), None)


def curve_of(run: Run, found: Found, whole: bool) -> Curve:
    usable = (float("inf") if us is None else us for us in found)
    best = list(itertools.accumulate(usable, min)) or [float("inf")]
    return Curve(problem=run.problem, way=run.way, seed=run.seed, best=best, whole=whole)


class _Ended(Exception):
    """A search has what it was to find, or its time is up."""


class _Ending:
    """``Ask`` until what was told is no longer than ``enough()``, or ``time.monotonic()`` is ``ends``."""

    def __init__(self, times: Times, enough: Callable[[], float], ends: float) -> None:
        self._times, self._enough, self._ends = times, enough, ends
        self._least = math.inf

    def begin(self, legal: Legal) -> Callable[[], float | None]:
        answer = self._times.begin(legal)

        def waited() -> float | None:
            # Before the next one, not after the last: what was told is in ``found`` by then.
            if self._least <= self._enough() or time.monotonic() >= self._ends:
                raise _Ended
            us = answer()
            self._least = min(self._least, math.inf if us is None else us)
            return us

        return waited


def never() -> float:
    """No time is enough."""
    return 0.0


def searched(
    run: Run, times: Times, trials: int, *, enough: Callable[[], float] = never, ends: float = math.inf
) -> Curve:
    """One search, one candidate after another in this process, as far as times are known. It ends after a time of at
    most ``enough()``, and before a candidate when ``time.monotonic()`` is ``ends``.
    """
    found: Found = []
    whole, device = True, DEVICE_CLASSES[times.chip.name]
    try:
        if time.monotonic() >= ends:
            raise _Ended
        ask = _Ending(times, enough, ends)
        WAYS[run.way](run.problem, device, ask, found, seed=run.seed, trials=trials)
    except (NotKnown, _Ended):
        whole = False
    return curve_of(run, found, whole)


def close_us(times: Times, row: Legal | None) -> float:
    """A time within 1 % of the best known; none is while ``row`` has no time: then nothing is known that the search
    that asks has not found itself.
    """
    known = row is not None and times.known.get(key_of(row.config)) is not None
    return CLOSE * times.best_us if known else never()


# ------------------------------------------------------------------ what is asked, and what is said


def committed(operator: str | None, shapes: Sequence[str]) -> list[tuple[Problem, str]]:
    """(problem, config of its row) of the shipped b200 table."""
    table = DispatchTable.load(shipped("results") / DEVICE, arch=DEVICE_CLASSES[DEVICE].arch)
    rows = [
        (row.key.problem, row.config)
        for row in table.rows.values()
        if operator in (None, row.key.problem.operator) and (not shapes or str(row.key.problem) in shapes)
    ]
    return sorted(rows, key=lambda one: (one[0].operator, tuple(one[0].sizes.values())))


def asked(operator: str | None, shapes: Sequence[str]) -> list[tuple[Problem, str]]:
    """``committed``, then the shapes of which there is no row, with nothing for a config. Raises ``InputError``."""
    rows = committed(operator, shapes)
    others = set(shapes) - {str(problem) for problem, _ in rows}
    parse = registry.operator(operator or DEFAULT).problem.parse
    return [*rows, *((parse(shape), "") for shape in sorted(others))]


def wanted_runs(problems: Sequence[Problem], args: argparse.Namespace) -> list[Run]:
    """By way, then by seed: what is cut off is of the last way."""
    every = itertools.product(args.ways, args.seeds, problems)
    return [Run(problem=problem, way=way, seed=seed) for way, seed, problem in every]


def run_all(rows: Sequence[tuple[Problem, str]], args: argparse.Namespace) -> Iterator[tuple[Curve, Times]]:
    """Each search when it has ended, and what is known of its problem. The rows' configs are timed besides."""
    device, ends = DEVICE_CLASSES[DEVICE], time.monotonic() + (args.budget or math.inf)
    times = files([problem for problem, _ in rows], DEVICE, args.times, closed=args.known, renew=args.renew)
    runs = wanted_runs(list(times), args)
    ours = [(problem, legalize(registry.parse_config(problem.operator, device.arch, row), problem, device.arch))
            for problem, row in rows if row]  # fmt: skip
    legal = {problem: one for problem, one in ours if isinstance(one, Legal)}

    def enough(problem: Problem) -> float:
        return close_us(times[problem], legal.get(problem)) if args.until_close else never()

    if args.jobs > 1:
        jobs = Jobs(times, DEVICE, jobs=args.jobs, trials=args.trials, enough=enough)
        for found in jobs.results(runs, ends, first=list(legal.items())):
            yield curve_of(*found), times[found[0].problem]
        return
    for problem, one in legal.items():
        with contextlib.suppress(NotKnown):
            times[problem].us(one)
    for run in runs:
        stop = functools.partial(enough, run.problem)
        yield searched(run, times[run.problem], args.trials, enough=stop, ends=ends), times[run.problem]


def line(curves: Sequence[Curve], best_us: float) -> str:
    """Of one problem and way: best after 60 and in the end over the best known, trials to within 1 %, by seed."""
    cells = [str(curves[0].problem), curves[0].way, f"{best_us:.4g}"]
    for value in (lambda one: one.after(EARLY), lambda one: one.best[-1]):
        cells.append(" ".join(f"{value(one) / best_us:.3f}" for one in curves))
    cells.append(" ".join(_trials(one, best_us) for one in curves))
    return f"| {' | '.join(cells)} |"


def _trials(curve: Curve, best_us: float) -> str:
    found = curve.within(CLOSE * best_us)
    if found is not None:
        return str(found)
    return "never" if curve.whole else f"> {len(curve.best)}"


def reached(curves: Sequence[Curve], best_us: float) -> bool:
    """Within 1 % in two of three seeds."""
    return 3 * sum(one.within(CLOSE * best_us) is not None for one in curves) >= 2 * len(curves)


def write_curves(path: Path, found: Sequence[tuple[list[Curve], float]]) -> None:
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(("operator", "problem", "way", "seed", "trial", "best_us", "regret"))
    for curves, best_us in found:
        for one in curves:
            name = (one.problem.operator, one.problem, one.way, one.seed)
            rows.writerows(
                (*name, trial, us, f"{us / best_us - 1:.4f}") for trial, us in enumerate(one.best, 1)
            )
    atomic_write(path, text.getvalue())


def main() -> int:
    try:
        return compare(_arguments())
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def compare(args: argparse.Namespace) -> int:
    rows = asked(args.op, args.shape)
    if not rows:
        raise InputError(f"{DEVICE} has no row of {args.op or 'any operator'}")
    curves: list[Curve] = []
    best: dict[Problem, Times] = {}
    for one, times in run_all(rows, args):
        curves.append(one)
        best[one.problem] = times
        print(f"{one.problem.operator} {one.problem} {one.way} seed {one.seed}: {one.best[-1]:.4g} us after "
              f"{len(one.best)}", file=sys.stderr, flush=True)  # fmt: skip
    found = [
        ([one for one in curves if one.problem == problem], best[problem].best_us) for problem, _ in rows
    ]
    late = show(found, args.ways, means=not args.until_close)
    if args.csv:
        write_curves(args.csv, found)
    return 1 if late else 0


def show(found: Sequence[tuple[list[Curve], float]], ways: Sequence[str], *, means: bool) -> list[str]:
    """Prints the tables; the problems where ``search`` is late. ``means``: of all searches, which says nothing where
    only those that are late went on.
    """
    late = []
    print(
        "| problem | way | best known | after 60, over it | in the end | trials to 1 % |\n|---|---|---|---|---|---|"
    )
    for curves, best_us in found:
        for way in ways:
            own = [one for one in curves if one.way == way]
            print(line(own, best_us))
            if way == "search" and not reached(own, best_us):
                late.append(f"{own[0].problem.operator} {own[0].problem}")
    for way in ways if means else ():
        print(f"\n{way}: {summary([(one, us) for curves, us in found for one in curves if one.way == way])}")
    print(f"not within 1 % in two of three seeds: {', '.join(late) or 'none'}")
    return late


def summary(found: Sequence[tuple[Curve, float]]) -> str:
    """Mean regret after 10, 20, ... trials, of the searches that had so many or all they wanted."""
    parts = []
    for mark in (10, 20, 40, 60, 100, 200):
        regrets = [one.after(mark) / us - 1 for one, us in found if one.whole or len(one.best) >= mark]
        if regrets and mark <= max(len(one.best) for one, _ in found):
            parts.append(f"{statistics.fmean(regrets):.1%} after {mark} ({len(regrets)} searches)")
    return f"mean regret {', '.join(parts) or 'of fewer than 10 trials not shown'}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--op")
    parser.add_argument("--shape", action="append", default=[])
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--ways", default="search")
    parser.add_argument("--until-close", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--budget", type=float)
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--known", action="store_true")
    kept.add_argument("--renew", action="store_true")
    parser.add_argument("--times", type=Path, default=FOLDER)
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    args.seeds, args.ways = seeds_of(args.seeds), ways_of(args.ways)
    return args


def seeds_of(text: str) -> list[int]:
    """Raises ``InputError``."""
    if not all(one.isdecimal() for one in text.split(",")):
        raise InputError(f"--seeds must be numbers with commas between them, got {text!r}")
    return [int(one) for one in text.split(",")]


def ways_of(text: str) -> list[str]:
    """Raises ``InputError``."""
    ways = text.split(",")
    if unknown := [one for one in ways if one not in WAYS]:
        raise InputError(f"--ways must be of {', '.join(WAYS)}, got {', '.join(unknown)}")
    return ways


if __name__ == "__main__":
    sys.exit(main())
