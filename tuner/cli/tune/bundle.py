"""``bundle``: copy the objects of a dispatch table beside it, for processes that launch without a compiler."""

from __future__ import annotations

import argparse
import contextlib
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_space.build.cache import default_cache_dir
from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import below
from kernel_space.core.registry import operator
from kernel_space.operators import DEFAULT
from kernel_space.places import COMMAND
from tuner.cli.options import text
from tuner.cli.options.common import check_out, dtypes_of
from tuner.cli.tune.peers import cuda_device
from tuner.compile.manifest import OBJECTS, check_objects
from tuner.devices.select import select_device
from tuner.search.progress import Progress
from tuner.tables.bundle import FOLDER, Bundle
from tuner.tables.bundle_write import Bundled, bundle_spares, write_bundle
from tuner.tables.dispatch import DispatchTable, table_path
from tuner.tables.spares import read_spares

if TYPE_CHECKING:
    from tuner.tune.bundle_check import CheckedBundle


def bundle_command(args: argparse.Namespace) -> int:
    if args.check:
        return _check(args)
    for item in args.also_dtype:
        dtypes_of(item, operator(DEFAULT).problem)  # refused before anything is read
    device = select_device(args.device, results=args.out)
    folder = below(check_out(args.out), device.name)
    rows = DispatchTable.load(folder, arch=device.arch).rows.values()
    if not rows:
        raise InputError(f"there is no row in {table_path(folder)}: nothing to bundle; tune first")
    also = _also(args.also_dtype, sorted({row.key.op for row in rows}))
    spares = read_spares(folder)
    if args.only_spares:
        bundled = bundle_spares(folder, device.arch, rows, spares, also=also)
    else:
        caches = _caches(args.objects)
        bundled = write_bundle(folder, device.arch, rows, also=also, caches=caches, spares=spares)
    if args.json:
        text.print_json({"device": text.device_record(device), **_record(bundled)})
    else:
        _print(bundled)
    return 1 if bundled.refused else 0


def _also(dtypes: Sequence[str], operators: Iterable[str]) -> list[dict[str, str]]:
    """Options of each operator that can have such dtypes."""
    found: list[dict[str, str]] = []
    for item, name in itertools.product(dtypes, operators):
        with contextlib.suppress(InputError):
            options = dtypes_of(item, operator(name).problem)
            found += [] if options in found else [options]
    return found


def _check(args: argparse.Namespace) -> int:
    """``--check``: 0 when every object here is judged right. Needs no DSL; bundles nothing."""
    from tuner.tune.bundle_check import check_bundle

    if args.also_dtype or args.objects or args.only_spares:
        raise InputError(
            "--check judges what is bundled: leave --also-dtype, --objects and --only-spares out, or bundle first"
        )
    device = cuda_device(args.device)
    folder = below(check_out(args.out), device.name, FOLDER)
    if not Bundle.load(folder, device.arch).entries:
        raise InputError(f"there is no object in {folder}: nothing to check; run {COMMAND} bundle first")
    with contextlib.closing(device):
        done = check_bundle(folder, device.arch, device, say=Progress().say)
    if args.json:
        text.print_json({"device": text.device_record(device), **_checked_record(folder, done)})
    else:
        _print_checked(folder, done)
    return 1 if done.failed else 0


def _checked_record(folder: Path, done: CheckedBundle) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "passed": [entry.to_record() for entry in done.passed],
        "known": len(done.known),
        "failed": [
            {
                "problem": str(entry.problem),
                "problem_class": entry.problem_class,
                "config": entry.config,
                "reason": why,
            }
            for entry, why in done.failed
        ],
        "removed": [entry.file for entry in done.removed],
    }


def _print_checked(folder: Path, done: CheckedBundle) -> None:
    counts = f"{len(done.passed)} checked now and right, {len(done.known)} before, {len(done.failed)} failed"
    pairs: list[tuple[str, object]] = [("bundle", f"{folder}: {counts}")]
    pairs += [("failed", f"{entry.problem} ({entry.problem_class}): {why}") for entry, why in done.failed]
    if done.removed:
        pairs.append(("removed", f"{len(done.removed)} objects that are wrong; tune their problems again"))
    text.print_block(pairs)


def _caches(objects: Path | None) -> list[Path]:
    """Where objects are looked for: what compile-only left, if named, before the build cache."""
    own = [] if objects is None else [check_objects(objects) / OBJECTS]
    return [*own, default_cache_dir()]


def _record(bundled: Bundled) -> dict[str, Any]:
    return {
        "folder": str(bundled.folder),
        "objects": [entry.to_record() for entry in bundled.entries],
        "refused": [{"problem": str(problem), "reason": reason} for problem, reason in bundled.refused],
        "removed": list(bundled.removed),
    }


def _print(bundled: Bundled) -> None:
    size = sum((bundled.folder / entry.file).stat().st_size for entry in bundled.entries)
    files = len({entry.file for entry in bundled.entries})
    pairs: list[tuple[str, object]] = [
        (
            "bundle",
            f"{bundled.folder}: {files} objects, {size / 1024:.0f} KiB, for {len(bundled.entries)} kernels",
        )
    ]
    pairs += [
        ("refused", f"{problem} ({problem.problem_class}): {reason}") for problem, reason in bundled.refused
    ]
    if bundled.removed:
        pairs.append(("removed", f"{len(bundled.removed)} objects without a row"))
    text.print_block(pairs)
