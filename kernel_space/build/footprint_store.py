"""Footprints kept on disk: a process that finds its own there need not import the DSL to solve a budget.

One file per kernel source and compiler, of JSON objects key -> fields, one on a line. A footprint is appended as one
line: a count of a space reads a thousand, and processes may add at the same time. A line that is not JSON, because
its writer was killed, costs reading those layouts again, nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import json
from pathlib import Path
from typing import Any

from kernel_space.build.cache import default_cache_dir
from kernel_space.build.key import kernel_source_hash, toolchain
from kernel_space.core.kernel import Kernel


def load(kernel: Kernel, key: str) -> dict[str, Any] | None:
    """Fields of the footprint ``key``, or None when it was never read back with these sources."""
    return _entries(_path(kernel)).get(key)


def save(kernel: Kernel, key: str, fields: dict[str, Any]) -> None:
    """Add one footprint. A folder that cannot be written costs the next process 10 ms, so that is not an error."""
    path = _path(kernel)
    _entries(path)[key] = fields
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(
                f"\n{json.dumps({key: fields})}"
            )  # whatever the last writer left behind, this line is whole


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
    """What the file holds; empty when it is missing. Lines that ``save`` does not write are passed over."""
    entries: dict[str, Any] = {}
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                entries.update(found if isinstance(found, dict) else {})
    return entries
