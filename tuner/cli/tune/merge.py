"""``merge``: take over results that were made elsewhere, by the rules of the dispatch table."""

from __future__ import annotations

import argparse
import dataclasses
import os
from typing import Any

from kernel_space.core.errors import InputError
from tuner.cli.options import text
from tuner.cli.options.common import check_out
from tuner.devices.classes import DEVICE_CLASSES
from tuner.devices.recorded import recorded_names
from tuner.tables.dispatch import FILE_NAME
from tuner.tables.merge import Decision
from tuner.tune.merge import Merged, merge, read_source


def merge_command(args: argparse.Namespace) -> int:
    """Rows, journals, reports and objects of ``args.folder`` into ``args.out``. All of it is read and checked before
    anything is written. Raises ``InputError`` and ``StoreError``."""
    check_out(args.out)
    classes = [*DEVICE_CLASSES, *recorded_names(args.folder)]
    names = [name for name in classes if os.path.lexists(args.folder / name / FILE_NAME)]
    if not names:
        known = ", ".join(f"{name}/{FILE_NAME}" for name in classes)
        raise InputError(f"{args.folder} must hold results of a tune ({known}), but has none of them")
    if args.out.resolve().is_relative_to(args.folder.resolve()):
        raise InputError(
            f"results must come from another folder than --out, got {args.folder} and {args.out}; "
            "nothing is written where they come from"
        )
    sources = [read_source(args.folder, name) for name in names]
    documents = []
    for source in sources:
        merged = merge(source, args.out)
        documents.append(
            {
                "device": source.device.name,
                "rows": list(map(_record, merged.decisions)),
                "trials": merged.trials,
                "objects": merged.objects,
            }
        )
        if not args.json:
            _print(source.device.name, merged)
    if args.json:
        text.print_json(documents)
    return 0


def _print(name: str, merged: Merged) -> None:
    for decision in merged.decisions:
        state = "taken" if decision.recorded else "kept as it was"
        print(f"{decision.row.key}: {state}, {decision.reason}")
    print(f"{name}: {merged.trials} trials added to the journals, {merged.objects} objects to the bundle")


def _record(decision: Decision) -> dict[str, Any]:
    return {
        "key": str(decision.row.key),
        "taken": decision.recorded,
        "reason": decision.reason,
        "row": dataclasses.asdict(decision.row),
    }
