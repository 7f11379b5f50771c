"""How the winners of simulated sweeps differ from the published kernel's configuration, and by which causes.

    python -m benchmarks.winners [--results results/b200]

Reads the trials of each sweep, runs nothing. A knob is shown as ``published -> winner``; a cause by the microseconds
that the winner spends less (-) or more (+) on it; causes below 2 % of the published time are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from kernel_space.core.arch import SM100A
from kernel_space.core.errors import InputError
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.report.data.sweep import knobs_of, time_terms
from tuner.report.write import read_trials
from tuner.space.published import published_config
from tuner.trials.outcome import Kind, Trial
from tuner.trials.rank_stability import faster_in, ranked

SMALL_SHARE = 0.02
SHOWN = ("mma_tiler_mn", "cluster_shape_mn")  # of a winner, whether or not they differ


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path("results/b200"))
    args = parser.parse_args()
    head = ("M,K,N,R", "winner us", "interval", "tile", "published us", "faster in", "knobs", "causes, us")
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
    for path in sorted((args.results / GemmProblem.operator).glob("*/trials.parquet"), key=_sizes):
        print(line(read_trials(path)))


def _sizes(path: Path) -> tuple[int, ...]:
    return tuple(int(size) for size in path.parent.name.partition("-")[0].split("x"))


def line(trials: list[Trial]) -> str:
    """One row of the table. Raises ``InputError`` where no trial has a simulated time."""
    order = ranked(trial for trial in trials if trial.kind is Kind.SIMULATED)
    if not order:
        raise InputError("no trial of the sweep has a simulated time; tune it without a card")
    winner, theirs = order[0], published_trial(order)
    knobs = knobs_of(winner.resolved)
    cells = [
        winner.problem,
        f"{winner.us:.2f}",
        f"{winner.low_us:.1f}-{winner.high_us:.1f}",
        " ".join(knobs[name] for name in SHOWN),
    ]
    if theirs is None:
        return f"| {' | '.join(cells)} | not timed |  |  |  |"
    told = (", ".join(differing(winner, theirs)) or "none", ", ".join(causes(winner, theirs)) or "none")
    return f"| {' | '.join(cells)} | {theirs.us:.2f} | {faster_in(winner, theirs) or 0:.0%} | {' | '.join(told)} |"


def published_trial(order: list[Trial]) -> Trial | None:
    """The trial of the configuration published for this problem, if it has a time."""
    problem = order[0].subject
    found = published_config(problem, SM100A)
    legal = legalize(found.config, problem, SM100A) if found else None
    wanted = str(legal.config) if isinstance(legal, Legal) else None
    return next((trial for trial in order if trial.resolved == wanted), None)


def differing(winner: Trial, theirs: Trial) -> Iterator[str]:
    """Knobs on which the two differ."""
    ours = knobs_of(winner.resolved)
    for name, value in knobs_of(theirs.resolved).items():
        if ours[name] != value:
            yield f"`{name}` {value} -> {ours[name]}"


def causes(winner: Trial, theirs: Trial) -> Iterator[str]:
    """Differences by cause, the largest first."""
    ours, others = time_terms(winner), time_terms(theirs)
    deltas = {name: ours.get(name, 0.0) - others.get(name, 0.0) for name in {**ours, **others}}
    for name, us in sorted(deltas.items(), key=lambda item: -abs(item[1])):
        if abs(us) >= SMALL_SHARE * (theirs.us or 0.0):
            yield f"{name} {us:+.2f}"


if __name__ == "__main__":
    main()
