"""Find the sets of machine constants that agree with what was published, and store some of them.

    python -m benchmarks.calibrate_clock --nvidia DIR [--draws 65536] [--keep 96]

A set agrees when NVIDIA's kernel takes the published time at every row with M = 4352 within ``CUTLASS_BAND`` (the
spread that the source states for its host is 15-25 %), and the SVDQuant kernel's stand-in takes the published
SM-active cycles within ``STAND_IN_BAND``. Rows with M = 256 are bound by the launch and decide nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import numpy as np

from benchmarks.clocked_rows import Row, cutlass_rows, ncu_rows
from kernel_space.arch import SM100A
from tuner.clock_sets import ConstantSets, draw_sets, store_sets

CUTLASS_BAND = 0.15
STAND_IN_BAND = 0.20
CHUNK = 8192
SMALL_M = 256


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nvidia", type=Path, required=True, help="what benchmarks.nvidia_gemm wrote")
    parser.add_argument("--draws", type=int, default=65536)
    parser.add_argument("--keep", type=int, default=96)
    args = parser.parse_args()
    sets = draw_sets(SM100A, args.draws)
    rows = [*cutlass_rows(args.nvidia), *ncu_rows()]
    errors = log_errors(rows, sets)
    chosen = admissible(rows, errors)
    print(f"{len(chosen)} of {sets.count} sets agree with every row")
    kept = [best(rows, errors, chosen), *chosen[np.linspace(0, len(chosen) - 1, args.keep - 1).astype(int)]]
    evidence = {"draws": f"{sets.count} Sobol points, {len(chosen)} agree, {len(kept)} kept, best fit first",
                "bands": f"CUTLASS rows {CUTLASS_BAND:.0%}, ncu rows {STAND_IN_BAND:.0%}"}  # fmt: skip
    discrepancy = float(np.median([*leave_one_out(rows, errors).values()]))
    print(f"leave-one-out: median error {discrepancy:.1%}")
    chosen_sets = sets.take([int(number) for number in kept])
    store_sets(dataclasses.replace(chosen_sets, discrepancy=discrepancy), evidence)


def leave_one_out(rows: list[Row], errors: np.ndarray) -> dict[int, float]:
    """CUTLASS row that counts -> error, as a share, of the set that fits the others best."""
    found = {}
    for number, row in enumerate(rows):
        if row.table == "CUTLASS" and counts(row):
            chosen = best(rows, errors, admissible(rows, errors, without=number), without=number)
            found[number] = abs(float(np.expm1(errors[number][chosen])))
    return found


def log_errors(rows: list[Row], sets: ConstantSets) -> np.ndarray:
    """log(simulated / published), float64 [rows, sets]; the last axis in chunks that fit the memory."""
    errors = []
    for row in rows:
        parts = []
        for start in range(0, sets.count, CHUNK):
            part = sets.take(list(range(start, min(sets.count, start + CHUNK))))
            cycles = row.cycles(part.clock)
            own_unit = cycles if row.table == "ncu" else part.microseconds(cycles) + part.values["launch_us"]
            parts.append(np.log(own_unit / row.published))
        errors.append(np.concatenate(parts))
    return np.array(errors)


def admissible(rows: list[Row], errors: np.ndarray, without: int = -1) -> np.ndarray:
    """Indices of the sets that agree with every row that counts but row ``without``."""
    good = np.ones(errors.shape[1], bool)
    for number, row in enumerate(rows):
        if counts(row) and number != without:
            band = STAND_IN_BAND if row.table == "ncu" else CUTLASS_BAND
            good &= np.abs(errors[number]) < np.log1p(band)
    return np.flatnonzero(good)


def best(rows: list[Row], errors: np.ndarray, chosen: np.ndarray, without: int = -1) -> int:
    """The set with the smallest squared error over the rows that count but row ``without``."""
    counted = [number for number, row in enumerate(rows) if counts(row) and number != without]
    return int(chosen[np.argmin((errors[np.ix_(counted, chosen)] ** 2).sum(axis=0))])


def counts(row: Row) -> bool:
    return row.problem.m > SMALL_M


if __name__ == "__main__":
    main()
