"""The published sweep of LoRA stages with the warps that its compiler made: which order comes out, and why.

    python -m benchmarks.lora_order

One constant more than the clock's has no source, ``compiled_then.OPERANDS``. It takes every whole number of clocks
within its bounds, with every stored set. A pair of a value and a set is *kept* if it puts both ncu rows within the band
that chose the sets; the sweep itself decides nothing.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Self

import numpy as np
from scipy.stats import spearmanr

from benchmarks.calibrate_clock import STAND_IN_BAND
from benchmarks.clocked_rows import additive_cost, ncu_rows, sweep_rows
from benchmarks.compiled_then import (
    OPERANDS,
    behind_the_wait,
    issue_clocks,
    latency,
    loops,
    other_warps,
)
from benchmarks.listed_rows import ListedRow, instructions_behind_the_wait, listed, own_charge
from benchmarks.sass_issue import Instruction, issue
from benchmarks.warp_marks import FENCES, marked
from kernel_space.core.arch import SM100A
from tuner.simulated.constants.clock import records_of
from tuner.simulated.constants.sets import ConstantSets, admissible_sets

WARPS = {
    "MMA warp": ("mma",), "and TMA warp": ("mma", "tma head", "tma"), "and epilogue": ("mma", "epilogue"),
    "all three": tuple(FENCES),
}  # fmt: skip
SHOWN = (9, 15, 20, 26, 30, 33, 40, 45)
MANY = 1000.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """``operands`` [values] up to the last with a kept set; ``kept`` bool [values, sets]; ``us`` by row, value, set."""

    rows: list[ListedRow]
    operands: np.ndarray
    kept: np.ndarray
    us: np.ndarray

    @property
    def published(self) -> np.ndarray:
        return np.array([one.row.published for one in self.rows])

    @property
    def nominal(self) -> int:
        """Where ``operands`` is the constant's value."""
        return int(np.argmin(np.abs(self.operands - OPERANDS.value)))

    def share(self, slow: int, fast: int) -> float:
        """Share of the kept pairs in which row ``slow`` is slower than row ``fast``."""
        return float(np.mean((self.us[slow] > self.us[fast])[self.kept]))

    def ordered(self) -> np.ndarray:
        """bool [values, sets]: do all rows come in the published order?"""
        us = self.us[np.argsort(self.published)]
        return np.all(np.diff(us, axis=0) > 0, axis=0)


class Tables(NamedTuple):
    """Rows of the sweep and of ncu, with the warps of that time."""

    sweep: list[ListedRow]
    profiled: list[ListedRow]

    @classmethod
    def listed(cls, sets: ConstantSets) -> Self:
        return cls(*([listed(row, sets.clock) for row in rows] for rows in (sweep_rows(), ncu_rows())))


def simulated(tables: Tables, sets: ConstantSets, marks: tuple[str, ...] = tuple(FENCES)) -> Sweep:
    """``marks``: which warps are as listed (``ListedRow.cycles``), in the rows of the sweep and in the ncu rows."""
    rows, profiled = tables
    operands, kept, us = [], [], []
    for value in np.arange(OPERANDS.low, OPERANDS.high + 1):
        ratios = np.array([one.cycles(value, marks) / one.row.published for one in profiled])
        inside = np.all(np.abs(np.log(ratios)) <= np.log1p(STAND_IN_BAND), axis=0)
        if not inside.any():
            break
        operands.append(value)
        kept.append(inside)
        us.append([sets.microseconds(one.cycles(value, marks)) for one in rows])
    return Sweep(
        rows=rows, operands=np.array(operands), kept=np.array(kept), us=np.array(us).transpose(1, 0, 2)
    )


def k_tile_clocks(path: tuple[Instruction, ...], operands: float, poll: float) -> float:
    """Clocks of a k-tile without a LoRA MMA when nothing but the warp holds it up."""
    code = [one for one in path if one.lora is None]
    return float(issue(code, lambda opcode: latency(opcode, operands, poll), times=4))


def print_loops() -> None:
    """One k-tile without a LoRA MMA; the last columns: clocks, and how many more by one clock of ``OPERANDS``."""
    poll = records_of(SM100A)["spin_clk"].value
    ends = (OPERANDS.low, OPERANDS.value)
    print(
        "\n| compiler | lora | ab | instructions | stalls | R2UR |",
        *(f"at {end:.0f} |" for end in ends),
        "slope |",
    )
    print("|---" * 9 + "|")
    for (compiler, lora, ab), path in sorted(loops().items(), reverse=True):
        code = [one for one in path if one.lora is None]
        moves = sum(one.opcode == "R2UR" for one in code)
        clocks = [f"{k_tile_clocks(path, end, poll):.0f} |" for end in ends]
        slope = k_tile_clocks(path, MANY + 1, poll) - k_tile_clocks(path, MANY, poll)
        stalls = sum(one.stall for one in code)
        print(f"| {compiler} | {lora} | {ab} | {len(code)} | {stalls} | {moves} |", *clocks, f"{slope:.0f} |")


def print_sweep(tables: Tables, sets: ConstantSets) -> None:
    """The table at the nominal value, its interval over the kept pairs."""
    sweep = simulated(tables, sets)
    nominal = sweep.us[:, sweep.nominal, 0]
    launch = additive_cost(sweep.published, nominal)
    values = np.repeat(sweep.operands, sweep.kept.sum(axis=1))
    print(f"\n{sweep.rows[0].row.table}: additive launch cost {launch:.1f} us (fitted)")
    print(
        f"operands {OPERANDS.value:g} clk; kept {values.min():g} to {values.max():g}, median {np.median(values):g}\n"
    )
    print("| config | published us | simulated us + launch | interval | error |\n|---|---|---|---|---|")
    for number, one in enumerate(sweep.rows):
        us = sweep.us[number][sweep.kept] + launch
        center = nominal[number] + launch
        print(
            f"| {one.row.label} | {one.row.published:.1f} | {center:.1f} | {us.min():.1f}-{us.max():.1f} "
            f"| {center / one.row.published - 1:+.0%} |"
        )
    right = sweep.ordered()
    print(f"\nSpearman {spearmanr(sweep.published, nominal).statistic:.2f}; share of the kept pairs:")
    for slow, fast in ((2, 0), (3, 2), (1, 2), (1, 3)):
        print(f"  {fast} < {slow}: {sweep.share(slow, fast):.0%}")
    values = np.repeat(sweep.operands, (right & sweep.kept).sum(axis=1))
    print(f"  all: {right[sweep.kept].mean():.0%}; with operands {values.min():g} to {values.max():g}")
    first = sweep.operands[np.argmax(right[:, 0])]
    print(f"  the nominal set: from {first:g} on")
    print_by_value(sweep, launch)


def print_by_value(sweep: Sweep, launch: float) -> None:
    print("\n| operands | lora=1 us | lora=3 us | kept sets | of them 0 < 2 < 3 < 1 |\n|---|---|---|---|---|")
    right = sweep.ordered()
    for at, value in enumerate(sweep.operands):
        if value in SHOWN:
            kept = sweep.kept[at]
            print(
                f"| {value:g} | {sweep.us[1, at, 0] + launch:.1f} | {sweep.us[3, at, 0] + launch:.1f} "
                f"| {kept.mean():.0%} | {right[at][kept].mean():.0%} |"
            )


def print_other_warps(sets: ConstantSets) -> None:
    """What the listings of the TMA warp and of the epilogue hold, and what the clock charges of the former."""
    poll = records_of(SM100A)["spin_clk"].value
    print("\n| compiler | lora | ab | TMA: instructions | R2UR | clocks | behind the wait ", end="")
    print("| epilogue: instructions | R2UR | clocks |\n" + "|---" * 10 + "|")
    stores = other_warps("epilogue")
    for key, path in sorted(other_warps("tma").items(), reverse=True):
        tma, store = (sum(one.opcode == "R2UR" for one in each) for each in (path, stores[key]))
        print(
            f"| {key[0]} | {key[1]} | {key[2]} | {len(path)} | {tma} | {issue_clocks(path, poll):.0f} "
            f"| {behind_the_wait(path)} | {len(stores[key])} | {store} | {issue_clocks(stores[key], poll):.0f} |"
        )
    row = sweep_rows()[1]
    behind = instructions_behind_the_wait(row.ptx)
    own = own_charge(dataclasses.replace(row, ptx=marked(row.ptx)), sets.clock, "tma")
    print(
        f"\nthe clock: {own[0]:.0f} clk per k-tile of the TMA warp ({own.min():.0f}-{own.max():.0f}), behind the wait "
        f"{behind:g} instructions, {(behind * sets.clock.issue)[0]:.0f} clk ({(behind * sets.clock.issue).min():.0f}-"
        f"{(behind * sets.clock.issue).max():.0f})"
    )


def print_by_warps(tables: Tables, sets: ConstantSets) -> None:
    """The nominal times, the launch cost of each line its own, and what is kept, by which warps are as listed."""
    print(
        "\n| as listed | lora=0 us | 1 | 2 | 3 | pairs kept | full order in | at the value | nominal set from |"
    )
    print("|---" * 9 + "|")
    for name, marks in WARPS.items():
        sweep = simulated(tables, sets, marks)
        nominal = sweep.us[:, sweep.nominal, 0]
        launch = additive_cost(sweep.published, nominal)
        right, kept = sweep.ordered(), sweep.kept
        print(
            f"| {name} |",
            *(f"{us + launch:.1f} |" for us in nominal),
            f"{kept.sum()} | {right[kept].mean():.0%} | {right[sweep.nominal][kept[sweep.nominal]].mean():.0%} "
            f"| {sweep.operands[np.argmax(right[:, 0])]:g} |",
        )


def main() -> None:
    sets = admissible_sets(SM100A)
    tables = Tables.listed(sets)
    print_loops()
    print_other_warps(sets)
    print_sweep(tables, sets)
    print_by_warps(tables, sets)


if __name__ == "__main__":
    main()
