"""Footprints kept on disk: a process that finds its own there need not import the DSL to solve a budget.

One JSON file per kernel source and compiler, written whole with a rename. Two processes may each lose what the other
added; the loser reads those layouts again, nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import uuid
from pathlib import Path
from typing import Any

from kernel_space.build_cache import default_cache_dir
from kernel_space.build_key import kernel_source_hash, toolchain


def load(kernel: str, key: str) -> dict[str, Any] | None:
    """Fields of the footprint ``key``, or None when it was never read back with these sources."""
    return _entries(_path(kernel)).get(key)


def save(kernel: str, key: str, fields: dict[str, Any]) -> None:
    """Add one footprint. A folder that cannot be written costs the next process 10 ms, so that is not an error."""
    path = _path(kernel)
    known = _entries(path)
    known.update(_read(path))
    known[key] = fields
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(known))
        os.replace(temporary, path)


def entries(kernel: str) -> dict[str, Any]:
    """Everything known of ``kernel`` with these sources: key -> fields, for ``adopt`` on another machine."""
    path = _path(kernel)
    return {**_read(path), **_entries(path)}


def adopt(kernel: str, footprints: dict[str, Any]) -> None:
    """Take over what another machine read back with these sources and this compiler; for this process only."""
    _entries(_path(kernel)).update(footprints)


@functools.cache
def _path(kernel: str) -> Path:
    digest = kernel_source_hash(kernel)[:24]
    return default_cache_dir().parent / f"footprints-{kernel}-{toolchain().dsl_version}-{digest}.json"


@functools.cache
def _entries(path: Path) -> dict[str, Any]:
    return _read(path)


def _read(path: Path) -> dict[str, Any]:
    """What the file holds; empty when it is missing or is not what ``save`` writes."""
    try:
        entries = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}
