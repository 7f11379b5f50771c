"""``merge``: take over results that were made elsewhere, by the rules of the dispatch table."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

from kernel_space.errors import InputError
from tuner import cli_text as text
from tuner.bundle import FOLDER, Bundle
from tuner.bundle_write import take_over
from tuner.cli_options import check_out
from tuner.device import DEVICE_CLASSES, select_device
from tuner.dispatch import FILE_NAME, DispatchTable, record
from tuner.dispatch_merge import Decision
from tuner.earlier import supersedes
from tuner.progress import Progress
from tuner.report import report_folder
from tuner.results import STUDY_FOLDER, current
from tuner.store import make_folder
from tuner.study import Identity, Study


def merge_command(args: argparse.Namespace) -> int:
    """Rows, journals and reports of ``args.folder`` into ``args.out``. Raises ``InputError`` and ``StoreError``."""
    check_out(args.out)
    names = [name for name in DEVICE_CLASSES if (args.folder / name / FILE_NAME).is_file()]
    if not names:
        known = ", ".join(f"{name}/{FILE_NAME}" for name in DEVICE_CLASSES)
        raise InputError(f"{args.folder} must hold results of a tune ({known}), but has none of them")
    if args.folder.resolve() == args.out.resolve():
        raise InputError(f"results must come from another folder than --out, both are {args.out}")
    for name in names:
        check_source(args.folder, name)
    documents = []
    for name in names:
        decisions = merge_table(args.folder, args.out, name)
        taken = merge_journals(args.folder, args.out, name)
        documents.append({"device": name, "rows": list(map(_record, decisions)), "trials": taken})
        if not args.json:
            for decision in decisions:
                state = "taken" if decision.recorded else "kept as it was"
                print(f"{decision.row.key}: {state}, {decision.reason}")
            print(f"{name}: {taken} trials added to the journals")
    if args.json:
        text.print_json(documents)
    return 0


def check_source(other: Path, name: str) -> None:
    """Raises ``InputError`` for anything damaged in the folder, before any of it is taken over."""
    arch = select_device(name).arch
    DispatchTable.load(other / name, arch=arch)
    bundle = Bundle.load(other / name / FOLDER, arch)
    for entry in bundle.entries:
        bundle.file_of(entry).read()
    for path in _journals(other, name):
        _identity(path)


def merge_table(other: Path, out: Path, name: str) -> list[Decision]:
    """``dispatch.record`` of every row; reports and bundled objects of rows that were taken come along."""
    device = select_device(name)
    rows = list(DispatchTable.load(other / name, arch=device.arch).rows.values())
    path = make_folder(out / name) / FILE_NAME
    decisions = record(path, rows, current(device), say=Progress().say)
    for row, decision in zip(rows, decisions, strict=True):
        problem = row.key.problem
        source, target = (report_folder(folder, name, problem) for folder in (other, out))
        if source.is_dir() and (decision.recorded or not target.exists()):
            shutil.copytree(source, target, dirs_exist_ok=True)
    taken = [decision.row.config for decision in decisions if decision.recorded]
    take_over(other / name, out / name, device.arch, taken)
    return decisions


def merge_journals(other: Path, out: Path, name: str) -> int:
    """Add trials that are new here, or supersede the same candidate's here; returns how many.

    Raises ``InputError`` for a journal that is damaged.
    """
    added = 0
    for path in _journals(other, name):
        identity = _identity(path)
        theirs, ours = (Study(folder / STUDY_FOLDER, identity) for folder in (other, out))
        for resolved, trial in theirs.trials.items():
            known = ours.find(resolved)
            if known is None or supersedes(trial, known):
                ours.append(trial)
                added += 1
    return added


def _journals(other: Path, name: str) -> list[Path]:
    return sorted((other / STUDY_FOLDER / name).glob("*.jsonl"))


def _identity(path: Path) -> Identity:
    try:
        with path.open() as file:
            identity = Identity(**json.loads(file.readline())["identity"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no journal: {error!r}") from None
    if identity.file_name != path.name:
        raise InputError(f"{path} must be named {identity.file_name} by its first line; was it renamed?")
    return identity


def _record(decision: Decision) -> dict[str, Any]:
    return {
        "key": str(decision.row.key),
        "taken": decision.recorded,
        "reason": decision.reason,
        "row": dataclasses.asdict(decision.row),
    }
