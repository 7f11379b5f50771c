"""``clean``: remove what can be made again. Results are never touched."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import is_plain
from kernel_space.places import cache_folder
from tuner.cli.options import text

FOLDERS = ("build", "verdicts")
FILES = ("footprints-*.json*", "sources-*.json")


def clean_command(args: argparse.Namespace) -> int:
    """Entries that a running tune has just made may go too: it makes them again. Raises ``InputError``."""
    if not args.cache:
        raise InputError("say what to remove: --cache, the compiled kernels and verdicts of the machine")
    folder = cache_folder()
    found = list(_ours(folder))
    size = sum(_bytes(path) for path in found)
    for path in found:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if args.json:
        text.print_json({"cache": str(folder), "removed": [path.name for path in found], "bytes": size})
    else:
        text.print_block([("cache", f"{folder}: removed {size / 1024**2:.1f} MiB")])
    return 0


def _ours(folder: Path) -> Iterator[Path]:
    """What this project puts there and nothing else: the folder may have been named by hand. No link is followed."""
    for name in FOLDERS:
        path = folder / name
        if path.is_symlink():
            raise InputError(f"{path} is a link; remove by hand what it points to")
        if path.is_dir():
            yield path
    for pattern in FILES:
        yield from sorted(path for path in folder.glob(pattern) if is_plain(path))


def _bytes(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    sizes = (os.lstat(os.path.join(root, name)).st_size for root, _, names in os.walk(path) for name in names)
    return sum(sizes)
