"""Print the tables of docs/timing.md: published against simulated, per table and protocol.

    python -m benchmarks.timed_vs_published --nvidia DIR [--draws 32768]

Leave-one-out: for each CUTLASS row the admissible sets are found without it; its prediction is that of the best of
them, its interval that of all of them, widened by the median error of the other rows.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from benchmarks.calibrate_clock import admissible, best, counts, leave_one_out, log_errors
from benchmarks.clocked_rows import Row, additive_cost, cutlass_rows, long_rows, ncu_rows, shape_rows
from benchmarks.lora_order import Tables, print_by_warps, print_loops, print_other_warps, print_sweep
from kernel_space.core.arch import SM100A
from tuner.simulated.constants.clock import records_of
from tuner.simulated.constants.sets import ConstantSets, admissible_sets, draw_sets
from tuner.simulated.time import mma_duty, time_of


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nvidia", type=Path, required=True, help="what benchmarks.nvidia_gemm wrote")
    parser.add_argument("--draws", type=int, default=32768, help="sets drawn for leave-one-out")
    args = parser.parse_args()
    rows = [*cutlass_rows(args.nvidia), *ncu_rows()]
    print_leave_one_out(rows, draw_sets(SM100A, args.draws, seed=7))
    sets = admissible_sets(SM100A)
    print_tile_orders([row for row in rows if row.table == "CUTLASS"], sets)
    print_long(long_rows(args.nvidia), sets)
    print_cycles([row for row in rows if row.table == "ncu"], sets)
    tables = Tables.listed(sets)
    print_sweep(tables, sets)
    print_events(shape_rows(), sets)
    print_loops()
    print_other_warps(sets)
    print_by_warps(tables, sets)
    print_constants(sets)


def print_leave_one_out(rows: list[Row], sets: ConstantSets) -> None:
    errors = log_errors(rows, sets)
    print(
        "\nCUTLASS, leave-one-out\n\n| M,K,N | tile | published us | simulated us | interval | error | covered |"
    )
    print("|---|---|---|---|---|---|---|")
    inside, predicted, scored = [], [], []
    held = leave_one_out(rows, errors)
    for number, row in enumerate(rows):
        if row.table != "CUTLASS":
            continue
        chosen = admissible(rows, errors, without=number)
        times = row.published * np.exp(errors[number])
        us = times[best(rows, errors, chosen, without=number)]
        spread = float(np.median([error for other, error in held.items() if other != number]))
        low, high = times[chosen].min() * (1 - spread), times[chosen].max() * (1 + spread)
        covered = bool(low <= row.published <= high)
        print(
            f"| {row.problem.m},{row.problem.k},{row.problem.n} | {row.label} | {row.published:.1f} | {us:.1f} "
            f"| {low:.1f}-{high:.1f} | {us / row.published - 1:+.0%} | {'yes' if covered else 'no'} |"
        )
        if counts(row):
            inside.append(covered)
            predicted.append(us)
            scored.append(row)
    rates = [row.problem.flops / row.published for row in scored]
    simulated = [row.problem.flops / us for row, us in zip(scored, predicted, strict=True)]
    by_rate = spearmanr(rates, simulated).statistic
    by_time = spearmanr([row.published for row in scored], predicted).statistic
    print(
        f"\nM = 4352: median error {np.median([*held.values()]):.1%}, worst {max(held.values()):.1%}, "
        f"covered {sum(inside)} of {len(inside)}, Spearman of TFLOP/s {by_rate:.2f}, of times {by_time:.2f}"
    )


def print_tile_orders(rows: list[Row], sets: ConstantSets) -> None:
    print("\n| M,K,N | faster < slower (published) | share of the sets |\n|---|---|---|")
    by_problem: dict[str, list[Row]] = {}
    for row in rows:
        by_problem.setdefault(f"{row.problem.m},{row.problem.k},{row.problem.n}", []).append(row)
    for problem, group in by_problem.items():
        group.sort(key=lambda row: row.published)
        cycles = [row.cycles(sets.clock) for row in group]
        for first in range(len(group)):
            for second in range(first + 1, len(group)):
                share = float(np.mean(cycles[first] < cycles[second]))
                print(f"| {problem} | {group[first].label} < {group[second].label} | {share:.0%} |")


def print_long(rows: list[Row], sets: ConstantSets) -> None:
    """None of these rows chose anything; ``time_of`` widens their intervals by what power may do."""
    print("\nCUTLASS, long launches, cold L2\n")
    print(
        "| M,K,N | tile | published us | simulated us | error | MMA duty | of the sets | with power | covered |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        time = time_of(row.run(sets.clock), sets)
        before = time.high_us / time.throttled
        covered = time.low_us <= row.published <= time.high_us
        print(
            f"| {row.problem.m},{row.problem.k},{row.problem.n} | {row.label} | {row.published:.0f} | {time.us:.0f} "
            f"| {time.us / row.published - 1:+.0%} | {mma_duty(time.run):.2f} | {time.low_us:.0f}-{before:.0f} "
            f"| {time.high_us:.0f} | {'yes' if covered else 'no'} |"
        )


def print_cycles(rows: list[Row], sets: ConstantSets) -> None:
    print(
        "\nSM-active cycles under ncu\n\n| stages | published | simulated | interval | error |\n|---|---|---|---|---|"
    )
    seen = []
    for row in rows:
        cycles = row.cycles(sets.clock)
        seen.append(cycles)
        print(
            f"| {row.label} | {row.published:.0f} | {cycles[0]:.0f} | {cycles.min():.0f}-{cycles.max():.0f} "
            f"| {cycles[0] / row.published - 1:+.0%} |"
        )
    saved = 1 - seen[1] / seen[0]
    print(
        f"\nab=2 -> 4 saves {saved[0]:.0%} ({saved.min():.0%}-{saved.max():.0%}) simulated, "
        f"{1 - rows[1].published / rows[0].published:.0%} of the cycles published (31 % of the time)"
    )


def print_events(rows: list[Row], sets: ConstantSets) -> None:
    """One additive launch cost for the whole table."""
    times = np.array([sets.microseconds(row.cycles(sets.clock)) for row in rows])
    published = np.array([row.published for row in rows])
    launch = additive_cost(published, times[:, 0])
    print(f"\n{rows[0].table}: additive launch cost {launch:.1f} us (fitted)\n")
    print(
        "| M,K,N,R | config | published us | simulated us + launch | interval | error |\n|---|---|---|---|---|---|"
    )
    for row, sets_us in zip(rows, times + launch, strict=True):
        print(
            f"| {row.problem} | {row.label} | {row.published:.1f} | {sets_us[0]:.1f} | {sets_us.min():.1f}-"
            f"{sets_us.max():.1f} | {sets_us[0] / row.published - 1:+.0%} |"
        )
    orders = [spearmanr(published, times[:, number]).statistic for number in range(times.shape[1])]
    print(f"\nSpearman of times {orders[0]:.2f}, worst set {min(orders):.2f}")


def print_constants(sets: ConstantSets) -> None:
    """The table, and between which values the admissible sets lie (5th to 95th percentile)."""
    print(
        "\n| constant | value | bounds | admissible | unit | kind | source |\n|---|---|---|---|---|---|---|"
    )
    for name, one in records_of(SM100A).items():
        low, high = np.quantile(sets.values[name], (0.05, 0.95))
        print(
            f"| {name} | {one.value:g} | {one.low:g}-{one.high:g} | {low:.4g}-{high:.4g} | {one.unit} | {one.kind} "
            f"| {one.source} |"
        )


if __name__ == "__main__":
    main()
