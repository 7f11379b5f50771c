"""How soon a search from empty results comes within 1 % of the best that is known, on every committed b200 problem.

    python -m benchmarks.bench_search [--op NAME] [--shape M,K,N,R ...] [--seeds 0,1,2] [--trials 200]
        [--ways search,random,tpe] [--known | --renew] [--times FOLDER] [--csv FILE]

``search`` is what ``tune.py`` does without any row; ``random`` takes legal points as they come; ``tpe`` is Optuna's
sampler alone. Times are simulated and kept in ``benchmarks/data/search_times`` (``search_times.py``), so that what was
asked before costs nothing. ``--known``: nothing is compiled, and a search ends where it asks for what no file holds; so
it is for files of another clock too. ``--csv``: the curves, one line for each trial: problem, way, seed, trial, best so
far in microseconds, regret (best so far / best known - 1).

The best known is the least of the committed row and of all times in the file. Exit code 1 if a problem is left where
``search`` is within 1 % in fewer than two thirds of the seeds.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import itertools
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.search_times import FOLDER, NotKnown, Times
from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import Problem
from kernel_space.core.registry import parse_config
from kernel_space.core.rules import Legal, legalize
from kernel_space.places import shipped
from tuner.devices.classes import DEVICE_CLASSES, DeviceClass
from tuner.files.store import atomic_write
from tuner.search.prefilter import Prefilter
from tuner.search.ranked import ranked
from tuner.search.sampler import Sampler
from tuner.search.search import Search
from tuner.space.published import published_config
from tuner.space.space import SearchSpace
from tuner.tables.dispatch import DispatchTable
from tuner.tune.promising import MOST, estimate_for

DEVICE = "b200"
CLOSE = 1.01
EARLY = 60
Asked = Iterator[Legal]


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


def search_from_nothing(
    problem: Problem, device: DeviceClass, times: Times, *, seed: int, trials: int
) -> Curve:
    """What a tune tries whose folder of results is empty."""
    nowhere = Path("/nonexistent")
    space, estimate = SearchSpace.load(problem.operator, device.arch), estimate_for(problem, device, nowhere)
    published = published_config(problem, device.arch)
    search = Search(
        space, problem, device.arch, seed=seed, trials=trials, estimate=estimate,
        first=ranked(space, problem, device.arch, estimate, limit=MOST, seed=seed),
        published=published.config if published else None, prefilter=Prefilter(problem, device),
    )  # fmt: skip
    found: list[float | None] = []
    try:
        while candidate := search.ask():
            found.append(times.us(candidate.legal))
            search.tell(candidate.number, found[-1])
    except NotKnown:
        pass
    return _curve(problem, "search", seed, found, trials)


def at_random(problem: Problem, device: DeviceClass, times: Times, *, seed: int, trials: int) -> Curve:
    """Legal points as they are drawn, each once; the draws are the same for every problem, legality is not."""
    space, generator = SearchSpace.load(problem.operator, device.arch), random.Random(seed)

    def draws() -> Asked:
        seen = set()
        while True:
            legal = legalize(space.random_config(generator), problem, device.arch)
            if isinstance(legal, Legal) and legal.config not in seen:
                seen.add(legal.config)
                yield legal

    return _curve(problem, "random", seed, _timed(itertools.islice(draws(), trials), times), trials)


def tpe_alone(problem: Problem, device: DeviceClass, times: Times, *, seed: int, trials: int) -> Curve:
    """Optuna's sampler from its first random points on; it hears at once of what is illegal."""
    space = SearchSpace.load(problem.operator, device.arch)
    sampler, known = Sampler(space, seed), dict[KernelConfig, float | None]()
    found: list[float | None] = []
    while len(found) < trials:
        proposal = sampler.propose()
        legal = legalize(space.config(proposal.params), problem, device.arch)
        if not isinstance(legal, Legal):
            sampler.refuse(proposal, "legal")
            continue
        if legal.config not in known:
            try:
                known[legal.config] = times.us(legal)
            except NotKnown:
                break
            found.append(known[legal.config])
        us = known[legal.config]
        sampler.refuse(proposal, "evaluated") if us is None else sampler.tell(proposal, us)
    return _curve(problem, "tpe", seed, found, trials)


WAYS: dict[str, Callable[..., Curve]] = {
    "search": search_from_nothing, "random": at_random, "tpe": tpe_alone,
}  # fmt: skip


def _timed(asked: Asked, times: Times) -> list[float | None]:
    found: list[float | None] = []
    try:
        for legal in asked:
            found.append(times.us(legal))
    except NotKnown:
        pass
    return found


def _curve(problem: Problem, way: str, seed: int, found: Sequence[float | None], trials: int) -> Curve:
    usable = (float("inf") if us is None else us for us in found)
    best = list(itertools.accumulate(usable, min)) or [float("inf")]
    return Curve(problem=problem, way=way, seed=seed, best=best, whole=len(found) == trials)


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


def run(problem: Problem, row: str, args: argparse.Namespace) -> tuple[list[Curve], float]:
    """All searches of one problem; the best that is known after them."""
    device = DEVICE_CLASSES[DEVICE]
    times = Times(problem, device, args.times, closed=args.known, renew=args.renew)
    legal = legalize(parse_config(problem.operator, device.arch, row), problem, device.arch)
    if isinstance(legal, Legal):
        _timed(iter([legal]), times)
    curves = [
        WAYS[way](problem, device, times, seed=seed, trials=args.trials)
        for way in args.ways.split(",")
        for seed in map(int, args.seeds.split(","))
    ]
    return curves, times.best_us


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
    args = _arguments()
    found, late = [], []
    print(
        "| problem | way | best known | after 60, over it | in the end | trials to 1 % |\n|---|---|---|---|---|---|"
    )
    for problem, row in committed(args.op, args.shape):
        curves, best_us = run(problem, row, args)
        found.append((curves, best_us))
        for way in args.ways.split(","):
            own = [one for one in curves if one.way == way]
            print(line(own, best_us), flush=True)
            if way == "search" and not reached(own, best_us):
                late.append(str(problem))
    for way in args.ways.split(","):
        print(f"\n{way}: {summary([(one, us) for curves, us in found for one in curves if one.way == way])}")
    if args.csv:
        write_curves(args.csv, found)
    print(f"not within 1 % in two of three seeds: {', '.join(late) or 'none'}")
    return 1 if late else 0


def summary(found: Sequence[tuple[Curve, float]]) -> str:
    """Mean regret after 10, 20, ... trials."""
    marks = [mark for mark in (10, 20, 40, 60, 100, 200) if mark <= max(len(one.best) for one, _ in found)]
    means = (statistics.fmean(one.after(mark) / us - 1 for one, us in found) for mark in marks)
    return "mean regret " + ", ".join(
        f"{mean:.1%} after {mark}" for mark, mean in zip(marks, means, strict=True)
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--op")
    parser.add_argument("--shape", action="append", default=[])
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--ways", default="search")
    files = parser.add_mutually_exclusive_group()
    files.add_argument("--known", action="store_true")
    files.add_argument("--renew", action="store_true")
    parser.add_argument("--times", type=Path, default=FOLDER)
    parser.add_argument("--csv", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
