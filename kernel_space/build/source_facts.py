"""What hashes need to know of a source file: its code as one digest, and what it imports. Kept on disk by content.

Parsing a kernel's sources and the machine's takes seconds, and every command asks whether results still stand for
them. A file that is the same to the byte has the same facts, so they are kept under its SHA-256. One file per version
of these two modules, of JSON objects digest -> facts, one on a line (``json_lines``).
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from kernel_space.build.json_lines import add_line, read_lines
from kernel_space.build.source_identity import code_only, parsed
from kernel_space.places import cache_folder

Import = tuple[int, str, tuple[str, ...]]
_SHA256 = re.compile(r"[0-9a-f]{64}")


class SourceFacts(NamedTuple):
    """``code``: SHA-256, in hex, of the code, empty if there is none. ``imports``: in the order of ``ast.walk``, with
    the level of ``from . import``, the module, and the names taken from it; ``import a`` has none."""

    code: str
    imports: tuple[Import, ...]


@functools.cache
def source_facts(source: bytes) -> SourceFacts:
    """Raises ``SyntaxError`` for what is no Python."""
    path, key = _path(cache_folder()), hashlib.sha256(source).hexdigest()
    found = _known(path).get(key)
    if found is None:
        found = _known(path)[key] = _read_off(source)
        add_line(path, {key: found})
    return found


def identity(sources: Iterable[bytes]) -> str:
    """SHA-256, in hex, over the code of Python files, in whatever order they come and whatever they are called.

    Raises ``SyntaxError`` for what is no Python."""
    codes = (source_facts(source).code for source in sources)
    return hashlib.sha256(" ".join(sorted(filter(None, codes))).encode()).hexdigest()


def _read_off(source: bytes) -> SourceFacts:
    code = code_only(source)
    imports: list[Import] = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            imports += [(0, alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports.append((node.level, node.module or "", tuple(alias.name for alias in node.names)))
    return SourceFacts(code=hashlib.sha256(code).hexdigest() if code else "", imports=tuple(imports))


@functools.cache
def _path(folder: Path) -> Path:
    """Facts of another way to read sources off are not found."""
    modules = (Path(__file__), Path(__file__).with_name("source_identity.py"))
    version = hashlib.sha256(b"".join(path.read_bytes() for path in modules)).hexdigest()
    return folder / f"sources-{version[:24]}.json"


@functools.cache
def _known(path: Path) -> dict[str, SourceFacts]:
    known: dict[str, SourceFacts] = {}
    for found in read_lines(path):
        with contextlib.suppress(ValueError, TypeError):
            known.update({key: _checked(key, *record) for key, record in found.items()})
    return known


def _checked(key: str, code: Any, imports: Any) -> SourceFacts:
    """Raises ``ValueError`` or ``TypeError`` for what ``source_facts`` does not write."""
    made = tuple((int(level), str(module), tuple(map(str, names))) for level, module, names in imports)
    if not _SHA256.fullmatch(key) or (code and not _SHA256.fullmatch(code)):
        raise ValueError(f"{key} must be a SHA-256 and have one")
    return SourceFacts(code=code, imports=made)
