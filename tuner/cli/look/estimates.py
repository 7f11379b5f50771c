"""What was fitted is written beside the table, and told."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernel_space.core.plain_files import below
from kernel_space.places import COMMAND
from tuner.cli.options import text
from tuner.cli.options.common import results_of
from tuner.devices.classes import DeviceClass
from tuner.tables.estimates import write_estimates
from tuner.tables.spares import write_spares


def keep_estimates(
    args: argparse.Namespace,
    operators: dict[str, Any],
    device: DeviceClass,
    spares: Mapping[str, Any],
) -> int:
    """``operators`` and ``spares``: records as ``tuner.tables.estimates`` and ``spares`` have them. Writes below
    ``--out``, unless it is a dry run."""
    folder = below(results_of(args), device.name)
    path = None if args.dry_run else write_estimates(folder, device.name, operators)
    if spares and not args.dry_run:
        write_spares(folder, device.name, spares)
    if args.json:
        record = {"device": device.name, "operators": operators, "file": path and str(path)}
        text.print_json({**record, **({"spares": spares} if spares else {})})
    else:
        _print(operators, device, path)
        _print_spares(spares)
    return 0


def _print_spares(spares: Mapping[str, Any]) -> None:
    for name, found in spares.items():
        alone, beside = (
            f"{mean:.3f} times the best timed, at most {worst:.2f}"
            for mean, worst in (found["rows_alone"], found["with_spares"])
        )
        print(f"\n{name}: {len(found['spares'])} spares; estimated for {found['problems']} problems")
        print(f"  rows alone       {alone}\n  rows and spares  {beside}")
        for one in found["spares"]:
            print(f"  {one['config']}")
    if spares:
        print(f"\nbundle them: {COMMAND} bundle --only-spares")


def _print(operators: dict[str, Any], device: DeviceClass, path: Path | None) -> None:
    text.print_block([("device", f"{device.name} ({device.arch.name}, {device.sm_count} SMs)")])
    for name, found in operators.items():
        print(f"\n{name}: {found['problems']} problems of {found['layers']} layers")
        for kernel, one in found["kernels"].items():
            error = "not known, as there is one layer" if one["error"] is None else f"{one['error']:.1%}"
            print(f"  {kernel:<16}{one['trials']:>5} trials, error {error}")
        if found["loss"] is not None:
            print(
                f"  chosen by them   {found['loss']:.3f} times the best trial, at most {found['worst_loss']:.2f}"
            )
    print("\nerrors and what is chosen: of each layer, by constants from the other layers")
    print(f"{'file':<11}{path}" if path else "file       not written (--dry-run)")
