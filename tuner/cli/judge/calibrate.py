"""``calibrate``: which admissible constants reproduce measured times, what that narrows, and the file that says so.

Of a device whose kernels have no simulated time, the constants of their efforts (``fit``).
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernel_space.build.build import CompileError, build
from kernel_space.build.key import kernel_source_hash
from kernel_space.core.errors import InputError
from kernel_space.core.registry import kernel_of, parse_config
from kernel_space.core.rules import Legal, legalize
from kernel_space.machine.values.faults import Fault, Unsupported
from tuner.calibration.calibrate import Calibration, Row, calibrate
from tuner.calibration.measured_trials import Measurement, read_measured
from tuner.cli.judge.fit import fit_command
from tuner.cli.options import text
from tuner.devices.classes import DeviceClass
from tuner.devices.recorded import recorded_class
from tuner.devices.select import device_class_of, has_simulator
from tuner.devices.simulated import Chip
from tuner.search.progress import Progress
from tuner.simulated.constants.sets import ConstantSets, admissible_pool
from tuner.simulated.constants.store import write_calibration
from tuner.simulated.time import simulate


def calibrate_command(args: argparse.Namespace) -> int:
    if args.noise is not None and not 0 < args.noise < 1:
        raise InputError(f"--noise must be a share between 0 and 1, got {args.noise:g}")
    measured = read_measured(trial_files(args.trials))
    device = _class_of(measured[0].device, args.out)
    if not has_simulator(device.arch):
        return fit_command(args, measured, device)
    pool = admissible_pool(device.arch)
    rows, left_out = simulated_rows(measured, device, pool, args.noise)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    about = f"sets calibrated with {len(rows)} measured times, {today}"
    found = calibrate(rows, pool, about=about)
    evidence = {
        "date": today,
        "trials": [str(path) for path in args.trials],
        **_record(found, rows, left_out),
    }
    path = None if args.dry_run else write_calibration(device.arch, found.sets, evidence)
    if args.json:
        text.print_json({"device": device.name, **evidence, "file": path and str(path)})
    else:
        _print(found, rows, left_out, device, path)
    return 0


def trial_files(paths: Sequence[Path]) -> list[Path]:
    """Of a folder every ``trials.parquet`` below it. Raises ``InputError`` for a folder without any."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.rglob("trials.parquet")) if path.is_dir() else [path]
        if not inside:
            raise InputError(f"there is no trials.parquet in {path}, nor below it")
        found += inside
    return found


def _class_of(name: str, out: Path) -> DeviceClass:
    """Raises ``InputError`` for a name that is neither a shipped class nor one whose numbers are kept."""
    return recorded_class(out, name) or device_class_of(name)


def simulated_rows(
    measured: Sequence[Measurement], device: DeviceClass, pool: ConstantSets, noise: float | None
) -> tuple[list[Row], list[str]]:
    """(rows for ``calibrate``, why the others are none). Compiles what the build cache lacks; a tenth of a second or
    more each. Raises ``InputError`` when no row is left."""
    progress, rows, left_out = Progress("calibrate"), [], []
    for number, one in enumerate(measured):
        if number % 16 == 0:
            progress.say(f"{number} of {len(measured)} kernels simulated")
        found = _simulated(one, device, pool)
        if isinstance(found, str):
            left_out.append(f"{one.problem} {one.config}: {found}")
            continue
        band = noise if noise is not None else max(one.noise, pool.discrepancy)
        rows.append(Row(label=f"{one.problem} {one.config}", us=one.us, noise=band, simulated_us=found))
    if not rows:
        raise InputError(f"none of the {len(measured)} measured kernels can be simulated; {left_out[0]}")
    return rows, left_out


def _simulated(one: Measurement, device: DeviceClass, pool: ConstantSets) -> Any:
    """Microseconds under each set, or why there are none."""
    config = parse_config(one.problem.operator, device.arch, one.config)
    if one.source_hash and one.source_hash != kernel_source_hash(kernel_of(config, one.problem)):
        return "measured with another version of the kernel"
    legal = legalize(config, one.problem, device.arch)
    if not isinstance(legal, Legal):
        return f"{legal.rule}: {legal.reason}"
    chip = Chip(name=device.name, arch=device.arch, sm_count=device.sm_count)
    try:
        compiled = build(legal.config, one.problem.problem_class, device.arch)
        return simulate(compiled, legal.config, one.problem, chip, sets=pool).sets_us
    except (CompileError, Unsupported, Fault) as error:
        return str(error)


def _record(found: Calibration, rows: Sequence[Row], left_out: Sequence[str]) -> dict[str, Any]:
    return {
        "rows": len(rows),
        "left_out": len(left_out),
        "largest_noise": round(max(row.noise for row in rows), 4),
        "pool": found.pool,
        "survivors": found.survivors,
        "kept": found.sets.count,
        "error_before": round(found.error_before, 4),
        "error_after": round(found.error_after, 4),
        "covered": round(found.covered, 3),
        "narrowed": {one.name: {"before": one.before, "after": one.after} for one in found.narrowed},
    }


def _print(
    found: Calibration, rows: Sequence[Row], left_out: Sequence[str], device: DeviceClass, path: Path | None
) -> None:
    skipped = f", {len(left_out)} left out ({left_out[0]})" if left_out else ""
    text.print_block(
        [
            ("device", f"{device.name} ({device.arch.name}, {device.sm_count} SMs)"),
            ("trials", f"{len(rows)} measured times{skipped}"),
            ("sets", f"{found.survivors} of {found.pool} reproduce all of them; {found.sets.count} are kept"),
            (
                "error",
                f"{found.error_before:.1%} median before, {found.error_after:.1%} after (each time predicted by the "
                f"sets that the others choose; their extremes hold {found.covered:.0%} of the times)",
            ),
        ]
    )
    for one in found.narrowed:
        print(
            f"  {one.name:<18}{one.before[0]:>9.4g} to {one.before[1]:<9.4g} now "
            f"{one.after[0]:>9.4g} to {one.after[1]:<9.4g}"
        )
    if not found.narrowed:
        print("  no constant is known better than before")
    print(f"{'file':<11}{path}" if path else "file       not written (--dry-run)")
