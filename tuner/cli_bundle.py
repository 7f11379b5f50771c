"""``bundle``: copy the objects of a dispatch table beside it, for processes that launch without a compiler."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from kernel_space.build_cache import default_cache_dir
from kernel_space.plain_files import below
from tuner import cli_text as text
from tuner.bundle_write import Bundled, write_bundle
from tuner.cli import CommandError
from tuner.cli_options import check_out, dtypes_of
from tuner.device import select_device
from tuner.dispatch import DispatchTable, table_path
from tuner.gpu.manifest import OBJECTS, check_objects


def bundle_command(args: argparse.Namespace) -> int:
    also = [dtypes_of(item) for item in args.also_dtype]
    device = select_device(args.device)
    folder = below(check_out(args.out), device.name)
    rows = DispatchTable.load(folder, arch=device.arch).rows.values()
    if not rows:
        raise CommandError(f"there is no row in {table_path(folder)}: nothing to bundle; tune first")
    bundled = write_bundle(folder, device.arch, rows, also=also, caches=_caches(args.objects))
    if args.json:
        text.print_json({"device": text.device_record(device), **_record(bundled)})
    else:
        _print(bundled)
    return 1 if bundled.refused else 0


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
