"""What a problem of a layer that nobody tuned is launched with, from recorded trials: by rows alone, and with spares.

    python -m benchmarks.bench_spares [--device h200] [--results results] [--op NAME ...] [--spares 12]

Needs neither card nor compiler, and two minutes. Each layer, (K, N), is left out whole: its trials from the fit, its
rows from the table, and its trials from those that spares are chosen among. Of each problem of it: the best trial there
of what could be launched, and the trial of what estimates choose, both over the problem's best trial. ``-``: it was not
timed there.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import Problem
from kernel_space.core.registry import parse_config
from kernel_space.core.rules import knob_rejection
from kernel_space.core.stand_in import compiled_sizes
from tuner.calibration.fit import Family, Names, Sample, families, layer_of, samples_of
from tuner.calibration.measured_trials import read_measured
from tuner.calibration.spares import choose_spares, estimated_us, mean_and_largest
from tuner.devices.classes import DEVICE_CLASSES, DeviceClass
from tuner.tables.dispatch import DispatchTable
from tuner.tables.row import Row

OPERATORS = ("svdquant_gemm", "svdquant_gemm_16bit")
Ratios = tuple[float | None, float | None]  # the best that could be launched, what is chosen; None: not timed


def compare(op: str, samples: Sequence[Sample], rows: Sequence[Row], device: DeviceClass, most: int) -> None:
    """Prints a line for each problem, and the means. ``samples``: of all operators; ``rows``: of ``op``."""
    found = []
    for layer in sorted({one.layer for one in samples if one.problem.operator == op}):
        others = [one for one in samples if one.layer != layer]
        fitted = families(others)
        own = [one for one in samples if one.layer == layer and one.problem.operator == op]
        spares: dict[tuple[object, ...], list[KernelConfig]] = {}
        for problem in sorted({one.problem for one in own}, key=lambda one: (str(one), str(one.options))):
            alike = [row for row in rows if _serves(row, problem) and layer_of(row.key.problem) != layer]
            configs = [parse_config(op, device.arch, row.config) for row in alike]
            timed = {one.config: one.us for one in own if one.problem == problem}
            key = tuple(compiled_sizes(problem).values())
            if key not in spares:
                spares[key] = _spares(problem, others, fitted, configs, device, most)
            alone, beside = (
                _ratios(problem, timed, each, fitted, device) for each in (configs, [*configs, *spares[key]])
            )
            found.append((alone, beside))
            print(
                f"{problem} {'/'.join(problem.options.values())}: rows {_shown(alone)}, with spares {_shown(beside)}"
            )
    _print_means(op, found)


def _serves(row: Row, problem: Problem) -> bool:
    known = row.key.problem
    return known.operator == problem.operator and compiled_sizes(known) == compiled_sizes(problem)


def _spares(
    problem: Problem,
    others: Sequence[Sample],
    fitted: Mapping[Names, Family],
    rows: Sequence[KernelConfig],
    device: DeviceClass,
    most: int,
) -> list[KernelConfig]:
    alike = [
        one
        for one in others
        if one.problem.operator == problem.operator
        and compiled_sizes(one.problem) == compiled_sizes(problem)
        and one.names in fitted
    ]
    if not alike:
        return []
    found = choose_spares(alike, fitted, rows, arch=device.arch, rates=device, most=most)
    return [one.config for one in found.chosen]


def _ratios(
    problem: Problem,
    timed: Mapping[KernelConfig, float],
    configs: Sequence[KernelConfig],
    fitted: Mapping[Names, Family],
    device: DeviceClass,
) -> Ratios:
    legal = [one for one in configs if not knob_rejection(one, problem, device.arch)]
    if not legal:
        return None, None
    best = min(timed.values())
    chosen = min(legal, key=lambda one: estimated_us(one, problem, fitted, device))
    there = [timed[one] / best for one in legal if one in timed]
    return min(there, default=None), timed[chosen] / best if chosen in timed else None


def _shown(ratios: Ratios) -> str:
    return " ".join("-" if one is None else f"{one:.3f}" for one in ratios)


def _print_means(op: str, found: Sequence[tuple[Ratios, Ratios]]) -> None:
    for at, what in enumerate(("best of what could be launched", "chosen")):
        both = [(a[at], b[at]) for a, b in found]
        pairs = [(a, b) for a, b in both if a is not None and b is not None]
        if not pairs:
            continue
        alone, beside = (mean_and_largest(each) for each in zip(*pairs, strict=True))
        print(
            f"{op}, {what} / best trial, {len(pairs)} of {len(found)} problems: rows {alone[0]:.3f}, largest "
            f"{alone[1]:.3f}; with spares {beside[0]:.3f}, {beside[1]:.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="h200")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--op", action="append")
    parser.add_argument("--spares", type=int, default=12)
    args = parser.parse_args()
    device, folder = DEVICE_CLASSES[args.device], args.results / args.device
    measured = read_measured(sorted(folder.rglob("trials.parquet")))
    samples = samples_of(measured, device.arch, device)
    table = DispatchTable.load(folder, arch=device.arch)
    for op in args.op or OPERATORS:
        compare(op, samples, list(table.rows.values()), device, args.spares)


if __name__ == "__main__":
    main()
