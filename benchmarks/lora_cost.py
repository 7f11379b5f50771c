"""What LoRA costs: the tuned kernel at R against the tuned kernel at R = 0, both simulated under the same sets.

    python -m benchmarks.lora_cost [--table results/b200] [--warm] [--shape M,K,N,R ...]

By default every row of the dispatch table with R > 0 whose problem at R = 0 has a row too. Programmatic launch is
switched off on both sides. The floor is LoRA's own tensor time, 4R/K of the NVFP4 MMAs of the R = 0 kernel, since half
precision runs at a quarter of their rate; the limit is the floor and 2 % of the time at R = 0. Shares count sets of
constants, paired.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import numpy as np

from benchmarks.parity import CHIP, ours
from kernel_space.core.arch import SM100A
from kernel_space.core.errors import InputError
from kernel_space.machine.clock.clock import Times
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tuner.simulated.constants.sets import admissible_sets
from tuner.simulated.time import SimulatedTime
from tuner.tables.dispatch import DispatchTable

RATE = 4  # NVFP4 over half precision
ALLOWANCE = 0.02
NVFP4 = "tensor, NVFP4"
WAITS = ("waiting for A/B", "waiting for LoRA", "waiting for the accumulator", "epilogue exposed", "prologue")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """Microseconds under each set of constants, nominal first: of LoRA, and its floor."""

    problem: GemmProblem
    plain: SimulatedTime
    lora: SimulatedTime

    @property
    def us(self) -> Times:
        return self.lora.sets_us - self.plain.sets_us

    @property
    def floor(self) -> Times:
        """MMA cycles are those of the nominal run, times each set's factor on them, over its clock."""
        values = admissible_sets(SM100A).values
        per_cycle = values["mma_scale"] / values["clock_ghz"]
        main = self.plain.terms[NVFP4] * per_cycle / per_cycle[0]
        return main * RATE * self.problem.r / self.problem.k

    @property
    def limit(self) -> Times:
        return self.floor + ALLOWANCE * self.plain.sets_us

    @property
    def met_in(self) -> float:
        """Share of the sets in which the cost is within the limit."""
        return float(np.mean(self.us <= self.limit))

    def line(self) -> str:
        low, high = self.us.min(), self.us.max()
        verdict = "yes" if self.us[0] <= self.limit[0] else "no"
        return (
            f"| {self.problem} | {self.plain.us:.2f} | {self.lora.us:.2f} | {self.us[0]:.2f} | {low:.2f} to {high:.2f} "
            f"| {self.floor[0]:.2f} | {self.limit[0]:.2f} | {verdict} | {self.met_in:.0%} | {self.why()} |"
        )

    def why(self) -> str:
        """What the R = 0 time is made of, and which waits LoRA added or took away."""
        busy = sum(us for name, us in self.plain.terms.items() if name.startswith("tensor")) / self.plain.us
        changes = {name: self.lora.terms.get(name, 0.0) - self.plain.terms.get(name, 0.0) for name in WAITS}
        told = ", ".join(
            f"{name} {us:+.2f}" for name, us in changes.items() if abs(us) >= 0.01 * self.plain.us
        )
        return f"R = 0: tensor busy {busy:.0%} of the time; {told or 'no wait differs by 1 %'}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", type=Path, default=Path("results/b200"), help="dispatch table of the rows")
    parser.add_argument("--warm", action="store_true", help="operands are in L2 at the start")
    parser.add_argument("--shape", action="append", default=[], help="M,K,N,R")
    args = parser.parse_args()
    table = DispatchTable.load(args.table)
    print(
        "| M,K,N,R | R=0 us | us | cost | over the sets | floor | limit | met | met in | why |\n"
        + "|---" * 10
        + "|"
    )
    for problem in [GemmProblem.parse(text) for text in args.shape] or _pairs(table):
        print(cost(table, problem, cold=not args.warm).line(), flush=True)


def _pairs(table: DispatchTable) -> list[GemmProblem]:
    problems = [key.problem for key in table.rows if isinstance(key.problem, GemmProblem)]
    return [problem for problem in problems if problem.r and dataclasses.replace(problem, r=0) in problems]


def cost(table: DispatchTable, problem: GemmProblem, *, cold: bool) -> Cost:
    """Raises ``InputError`` when the table lacks a row of ``problem`` or of its R = 0."""
    lora, plain = (_time(table, one, cold=cold) for one in (problem, dataclasses.replace(problem, r=0)))
    return Cost(problem=problem, plain=plain, lora=lora)


def _time(table: DispatchTable, problem: GemmProblem, *, cold: bool) -> SimulatedTime:
    found = table.lookup(problem)
    if found.source != "exact":
        raise InputError(
            f"the table has no row of {problem}; run tune.py --shape {problem} --device {CHIP.name}"
        )
    assert isinstance(found.config, KernelConfigSm100a)
    return ours(found.config, problem, cold=cold)


if __name__ == "__main__":
    main()
