"""What the prefilter would lose: legal configs compiled and simulated, none left out, against the model's word.

    python -m benchmarks.prefilter_loss --out DIR [--shape M,K,N,R ... | --shapes FILE.yaml] [--samples 200] [--search]

Configs are drawn evenly from the legal points, or with ``--search`` are those that the search tries when nothing is
filtered. ``DIR`` keeps one CSV per problem (config, modelled us, simulated us; the default rule's config first) that
further runs go on from, so that a sweep can be stopped at any time. The tables of docs/search.md are printed from what
is there; the filter never drops the default, so it is no sample.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Iterator
from pathlib import Path

from kernel_space.arch import SM100A
from kernel_space.build import CompileError, build
from kernel_space.problem import GemmProblem
from kernel_space.rules import Legal, legalize
from tuner.cli_options import add_problem_options, problems_of
from tuner.search import Search
from tuner.simulated_device import Chip, simulated_outcome
from tuner.space import SearchSpace
from tuner.timing_model import model_us

CHIP = Chip(name="b200", arch=SM100A, sm_count=148)
FACTORS = (1.1, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0)
CLOSE = 1.02  # within 2 % of the best is as good as the best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    add_problem_options(parser)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--search", action="store_true", help="what an unfiltered search tries")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    problems = problems_of(args)
    sources = [_Source(problem, args.out, args) for problem in problems]
    for _ in range(args.samples):
        for source in sources:
            source.sample()
    for problem in problems:
        print_losses(problem, read(args.out, problem))


def _draws(problem: GemmProblem, seed: int) -> Iterator[Legal]:
    """Different legal configs, drawn evenly from the points of the space; always the same ones for a seed."""
    space, generator, seen = SearchSpace.load(SM100A.kernel), random.Random(seed), set()
    default = legalize(space.default(problem), problem, SM100A)
    assert isinstance(default, Legal)
    yield default
    seen.add(str(default.config))
    while True:
        legal = legalize(space.random_config(generator), problem, SM100A)
        if isinstance(legal, Legal) and str(legal.config) not in seen:
            seen.add(str(legal.config))
            yield legal


class _Source:
    """Configs of one problem, one at a time; those that the CSV holds are answered from there."""

    def __init__(self, problem: GemmProblem, out: Path, args: argparse.Namespace) -> None:
        self.problem, self.out, self.most = problem, out, args.samples
        self.known = {config: us for config, _, us in read(out, problem)}
        self.draws = _draws(problem, args.seed)
        self.search = None
        if args.search:
            space = SearchSpace.load(SM100A.kernel)
            self.search = Search(space, problem, SM100A, seed=args.seed, trials=args.samples)

    def sample(self) -> None:
        """Time the next config that is not known, and write it down; one without a time has none in the CSV."""
        while len(self.known) < self.most:
            candidate = self.search.ask() if self.search else None
            legal = candidate.legal if candidate else next(self.draws)
            new = str(legal.config) not in self.known
            us = _simulated(legal, self.problem) if new else self.known[str(legal.config)]
            if self.search and candidate:
                self.search.tell(candidate.number, us)
            if new:
                self._write(legal, us)
                return

    def _write(self, legal: Legal, us: float | None) -> None:
        self.known[str(legal.config)] = us
        model = model_us(legal.config, self.problem, CHIP)
        with _file(self.out, self.problem).open("a", newline="") as lines:
            csv.writer(lines).writerow([legal.config, f"{model:.5g}", us and f"{us:.5g}"])


def _simulated(legal: Legal, problem: GemmProblem) -> float | None:
    try:
        compiled = build(legal.config, problem.problem_class, SM100A)
    except CompileError:
        return None
    outcome = simulated_outcome(compiled, legal, problem, CHIP)
    return outcome.timing.us if outcome.timing else None


def _file(out: Path, problem: GemmProblem) -> Path:
    return out / f"{str(problem).replace(',', 'x')}.csv"


def read(out: Path, problem: GemmProblem) -> list[tuple[str, float, float | None]]:
    """(config, modelled us, simulated us or None) of every sample so far."""
    if not _file(out, problem).exists():
        return []
    with _file(out, problem).open(newline="") as lines:
        return [(config, float(model), float(us) if us else None) for config, model, us in csv.reader(lines)]


def print_losses(problem: GemmProblem, rows: list[tuple[str, float, float | None]]) -> None:
    """Per factor: the share of samples left out, of those within 2 % of the best, and the best that is left."""
    timed = [(model, us) for _, model, us in rows[1:] if us is not None]
    if not timed:
        return
    best_model, best_us = min(model for _, model, _ in rows), min(us for _, us in timed)
    close = [model / best_model for model, us in timed if us <= best_us * CLOSE]
    default = rows[0][2] or float("nan")
    print(
        f"\n{problem}: {len(timed)} timed, best {best_us:.2f} us (default {default:.2f} us), {len(close)} within 2 %, "
        f"modelled at {min(close):.2f} to {max(close):.2f} of the best modelled"
    )
    for factor in FACTORS:
        kept = [us for model, us in timed if model <= factor * best_model]
        lost = sum(ratio > factor for ratio in close)
        best = f"{min(kept) / best_us - 1:+.1%}" if kept else "none"
        print(
            f"  {factor:4.2f}: {1 - len(kept) / len(timed):4.0%} left out, {lost} of {len(close)} close, best {best}"
        )


if __name__ == "__main__":
    main()
