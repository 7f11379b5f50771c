"""Find the sets of machine constants that agree with what was published, and store them.

    python -m benchmarks.calibrate_clock --nvidia DIR [--draws 131072] [--keep 96]
    python -m benchmarks.calibrate_clock --restate [--nvidia DIR]

A set agrees when NVIDIA's kernel takes the published time at every row with M = 4352 within ``CUTLASS_BAND`` (the
spread that the source states for its host is 15-25 %), and the SVDQuant kernel's stand-in takes the published
SM-active cycles within ``STAND_IN_BAND``. Rows with M = 256 are bound by the launch and decide nothing.

Stored are the numbers of all sets that agree, ``--keep`` of them as values, and what the machine answers today for two
kernels of this project: when it answers otherwise, the sets are in doubt, times say so, and this is to be run again.
``--restate`` keeps the sets if each still agrees with the rows at hand, and stores what the machine answers now: for a
change of the machine that moves this project's kernels and not NVIDIA's, or a constant that no GEMM decides.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import numpy as np

from benchmarks.clocked_rows import SM_COUNT, Row, cutlass_rows, ncu_rows
from kernel_space.build.build import build
from kernel_space.core.arch import SM100A
from kernel_space.core.rules import Legal, legalize
from kernel_space.machine.clock.constants import cluster_places
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from kernel_space.operators.svdquant_gemm.sm100a.machine import OPERANDS, atomic_results
from tuner.simulated.constants import witness as clock_witness
from tuner.simulated.constants.sets import ConstantSets, draw_sets, kept_sets, restate_sets, store_sets
from tuner.simulated.time import capture_launch, map_names

CUTLASS_BAND = 0.15
STAND_IN_BAND = 0.20
CHUNK = 8192
SEED = 0
# What a search tries most, and what only few do: multicast, the overlap of launches, split K, A/B slots for LoRA.
WITNESSES = {
    "pair": ("4352,3840,3072,128", "mma_tiler_mn=256x192 epi_tile_n=64 prefetch_dist=2 use_pdl=true"),
    "split": (
        "256,3840,3072,32",
        "mma_tiler_mn=128x128 cluster_shape_mn=2x2 split_k=2 lora_schedule=tail lora_buffer=ab_stage swap_ab=true",
    ),
}
SMALL_M = 256


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nvidia", type=Path, help="what benchmarks.nvidia_gemm wrote")
    parser.add_argument("--restate", action="store_true", help="keep the sets, store the answers of today")
    parser.add_argument("--draws", type=int, default=131072)
    parser.add_argument("--keep", type=int, default=96)
    args = parser.parse_args()
    if args.nvidia is None and not args.restate:
        parser.error("--nvidia is needed to choose sets")
    rows = [*(cutlass_rows(args.nvidia) if args.nvidia else []), *ncu_rows()]
    if args.restate:
        return restate(rows)
    sets = draw_sets(SM100A, args.draws, seed=SEED)
    errors = log_errors(rows, sets)
    chosen = admissible(rows, errors)
    print(f"{len(chosen)} of {sets.count} sets agree with every row")
    spread = chosen[np.linspace(0, len(chosen) - 1, args.keep - 1).astype(int)]
    kept = np.array([best(rows, errors, chosen), *spread])
    evidence = {"draws": f"{sets.count} Sobol points, {len(chosen)} agree, {len(kept)} kept, best fit first",
                "bands": f"CUTLASS rows {CUTLASS_BAND:.0%}, ncu rows {STAND_IN_BAND:.0%}"}  # fmt: skip
    discrepancy = float(np.median([*leave_one_out(rows, errors).values()]))
    print(f"leave-one-out: median error {discrepancy:.1%}")
    witnesses = [_witness(name, *case) for name, case in WITNESSES.items()]
    clock_witness.store(witnesses)
    answers = clock_witness.cycles_of(witnesses, sets.take(kept[: clock_witness.SETS]).clock)
    drawn = dataclasses.replace(sets, discrepancy=discrepancy)
    store_sets(
        drawn, agreeing=chosen.tolist(), kept=kept.tolist(), seed=SEED, witness=answers, evidence=evidence
    )


def restate(rows: list[Row]) -> None:
    sets = kept_sets()
    agreeing = admissible(rows, log_errors(rows, sets))
    if len(agreeing) < sets.count:
        raise SystemExit(
            f"all {sets.count} sets must agree with the rows, {len(agreeing)} do; choose sets again with --nvidia"
        )
    witnesses = clock_witness.load()
    restate_sets(sets, clock_witness.cycles_of(witnesses, sets.take(range(clock_witness.SETS)).clock))
    print(f"{sets.count} sets agree with {len(rows)} rows as before")


def _witness(name: str, shape: str, text: str) -> clock_witness.Witness:
    problem = GemmProblem.parse(shape)
    legal = legalize(KernelConfigSm100a.parse(text), problem, SM100A)
    assert isinstance(legal, Legal) and isinstance(legal.config, KernelConfigSm100a), legal
    compiled = build(legal.config, problem.problem_class, SM100A)
    places = cluster_places(SM_COUNT, legal.config.cluster_size)
    launch = capture_launch(compiled, problem, places)
    return clock_witness.Witness(
        name=name, ptx=compiled.ptx, launch=launch, sm_count=SM_COUNT, places=places,
        map_names=map_names(launch, compiled, OPERANDS), atomic_results=atomic_results(legal.config, problem, SM_COUNT),
    )  # fmt: skip


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
    return int(chosen[np.argmin((errors[np.ix_(np.array(counted), chosen)] ** 2).sum(axis=0))])


def counts(row: Row) -> bool:
    return row.problem.m > SMALL_M


if __name__ == "__main__":
    main()
