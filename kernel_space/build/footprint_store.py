"""Footprints kept on disk: a process that finds its own there need not import the DSL to solve a budget.

One file per kernel source and compiler, of JSON objects key -> fields, one on a line (``json_lines``): counting a space
reads a thousand, and processes may add at the same time.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from kernel_space.build.cache import default_cache_dir
from kernel_space.build.json_lines import add_line, read_lines
from kernel_space.build.key import kernel_source_hash, toolchain
from kernel_space.core.kernel import Kernel


def load(kernel: Kernel, key: str) -> dict[str, Any] | None:
    """Fields of the footprint ``key``, or None when it was never read back with these sources."""
    return _entries(_path(kernel)).get(key)


def save(kernel: Kernel, key: str, fields: dict[str, Any]) -> None:
    """Add one footprint."""
    path = _path(kernel)
    _entries(path)[key] = fields
    add_line(path, {key: fields})


def entries(kernel: Kernel) -> dict[str, Any]:
    """Everything known of ``kernel`` with these sources: key -> fields, for ``adopt`` on another machine."""
    path = _path(kernel)
    return {**_read(path), **_entries(path)}


def adopt(kernel: Kernel, footprints: dict[str, Any]) -> None:
    """Take over what another machine read back with these sources and this compiler; for this process only."""
    _entries(_path(kernel)).update(footprints)


@functools.cache
def _path(kernel: Kernel) -> Path:
    digest = kernel_source_hash(kernel)[:24]
    return (
        default_cache_dir().parent
        / f"footprints-{kernel.operator}-{kernel.name}-{toolchain().dsl_version}-{digest}.json"
    )


@functools.cache
def _entries(path: Path) -> dict[str, Any]:
    return _read(path)


def _read(path: Path) -> dict[str, Any]:
    """What the file holds; empty when it is missing."""
    entries: dict[str, Any] = {}
    for found in read_lines(path):
        entries.update(found)
    return entries
