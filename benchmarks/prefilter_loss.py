"""What the prefilter would lose: legal configs compiled and simulated, none left out, against the model's word.

    python -m benchmarks.prefilter_loss --out DIR [--shape M,K,N,R ... | --shapes FILE.yaml] [--samples 150] [--search]

Configs are drawn evenly from the legal points, or with ``--search`` are those that the search tries when nothing is
filtered. ``DIR`` keeps one CSV per problem and kind (config, modelled us, simulated us; the default rule's config
first) that further runs go on from, so that a sweep can be stopped at any time. The tables of
docs/evidence/prefilter.md are printed from all that is there.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path

from kernel_space.build.build import CompileError, build
from kernel_space.core.arch import SM100A
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from kernel_space.operators.svdquant_gemm.sm100a.model_time import model_us
from tuner.cli.options.common import add_problem_options, problems_of
from tuner.devices.simulated import Chip, simulated_outcome
from tuner.search.prefilter import FACTOR
from tuner.search.search import Search
from tuner.space.space import SearchSpace

CHIP = Chip(name="b200", arch=SM100A, sm_count=148)
FACTORS = (1.1, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5)
CLOSE = 1.02  # within 2 % of the best is as good as the best
EVEN, SEARCHED = "even", "search"
Sample = tuple[str, float, float | None]  # config, modelled us, simulated us


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    add_problem_options(parser)
    parser.add_argument("--samples", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--search", action="store_true", help="what an unfiltered search tries")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    problems = [problem for problem in problems_of(args) if isinstance(problem, GemmProblem)]
    sources = [_Source(problem, args.out, args) for problem in problems]
    for _ in range(args.samples):
        for source in sources:
            source.sample()
    print_table(args.out, problems)
    print_factors(args.out, problems)


def _draws(problem: GemmProblem, seed: int) -> Iterator[Legal]:
    """Different legal configs, drawn evenly from the points of the space; always the same ones for a seed."""
    space, generator, seen = SearchSpace.load(GemmProblem.operator, SM100A), random.Random(seed), set()
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
        self.kind = SEARCHED if args.search else EVEN
        self.known = {config: us for config, _, us in read(out, problem, self.kind)}
        self.draws = _draws(problem, args.seed)
        self.search = None
        if args.search:
            space = SearchSpace.load(GemmProblem.operator, SM100A)
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
        assert isinstance(legal.config, KernelConfigSm100a)
        model = model_us(legal.config, self.problem, CHIP)
        with _file(self.out, self.problem, self.kind).open("a", newline="") as lines:
            csv.writer(lines).writerow([legal.config, f"{model:.5g}", us and f"{us:.5g}"])


def _simulated(legal: Legal, problem: GemmProblem) -> float | None:
    try:
        compiled = build(legal.config, problem.problem_class, SM100A)
    except CompileError:
        return None
    outcome = simulated_outcome(compiled, legal, problem, CHIP)
    return outcome.timing.us if outcome.timing else None


def _file(out: Path, problem: GemmProblem, kind: str) -> Path:
    return out / f"{str(problem).replace(',', 'x')}-{kind}.csv"


def read(out: Path, problem: GemmProblem, kind: str) -> list[Sample]:
    """Every sample so far, the default first."""
    path = _file(out, problem, kind)
    if not path.exists():
        return []
    with path.open(newline="") as lines:
        return [(config, float(model), float(us) if us else None) for config, model, us in csv.reader(lines)]


@dataclasses.dataclass(frozen=True)
class Found:
    """Samples of one problem with a time, as (modelled over the best modelled, simulated over the best simulated)."""

    even: list[tuple[float, float]]
    searched: list[tuple[float, float]]
    best_us: float
    default: float  # simulated time over the best

    @classmethod
    def of(cls, out: Path, problem: GemmProblem) -> Found:
        even, searched = (
            [(model, us) for _, model, us in read(out, problem, kind) if us] for kind in (EVEN, SEARCHED)
        )
        both = even + searched
        best_model, best_us = min(model for model, _ in both), min(us for _, us in both)
        drawn, tried = (
            [(model / best_model, us / best_us) for model, us in part[1:]] for part in (even, searched)
        )  # without the default, which is never dropped
        return cls(drawn, tried, best_us, both[0][1] / best_us)

    @property
    def close(self) -> list[float]:
        """Where the model puts what is within 2 % of the best."""
        return sorted(model for model, us in self.even + self.searched if us <= CLOSE)


def print_table(out: Path, problems: list[GemmProblem]) -> None:
    print(
        "\n| M,K,N,R | drawn + searched | best us | default | within 2 % | modelled at | drawn: left out | best left | "
        "searched: left out | best left |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    for problem in problems:
        found = Found.of(out, problem)
        cells = [str(problem), f"{len(found.even)} + {len(found.searched)}", f"{found.best_us:.2f}"]
        cells += [f"+{found.default - 1:.0%}", str(len(found.close))]
        cells.append(f"{found.close[0]:.2f}-{found.close[-1]:.2f}" if found.close else "")
        for part in (found.even, found.searched):
            cells += _loss(part, FACTOR)
        print(f"| {' | '.join(cells)} |")


def _loss(part: list[tuple[float, float]], factor: float) -> list[str]:
    """Share of samples left out; by how much the best of the others is slower than the best of all of them."""
    if not part:
        return ["", ""]
    kept = [us for model, us in part if model <= factor]
    best = min(us for _, us in part)
    return [f"{1 - len(kept) / len(part):.0%}", f"{min(kept) / best - 1:+.1%}" if kept else "none"]


def print_factors(out: Path, problems: list[GemmProblem]) -> None:
    """Over all problems: what each factor leaves out, and how many of those within 2 % of the best."""
    everything = [Found.of(out, problem) for problem in problems]
    close = [ratio for found in everything for ratio in found.close]
    print(
        "\n| factor | drawn: left out | searched: left out | within 2 % of the best: left out |\n|---|---|---|---|"
    )
    for factor in FACTORS:
        shares = []
        for parts in ([one.even for one in everything], [one.searched for one in everything]):
            models = [model for part in parts for model, _ in part]
            shares.append(f"{sum(model > factor for model in models) / max(len(models), 1):.0%}")
        print(
            f"| {factor} | {shares[0]} | {shares[1]} | {sum(one > factor for one in close)} of {len(close)} |"
        )


if __name__ == "__main__":
    main()
