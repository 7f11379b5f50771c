"""Read a ``dispatch.json`` of any shape: the rows that are good, and one line about each that is not.

A table may have been edited, torn by a copy, or made by somebody who means harm. A row that is not what this project
writes is passed over, and the others serve. A row of an operator that is not installed here is passed over as well,
but kept: whoever writes the table writes it again as it was. When the document as a whole is no JSON, the rows are
read line by line, which is how they are written.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import AnyPath
from tuner.files.record_checks import shown
from tuner.files.store import CorruptFile, parse_json, read_bytes, write_if_new
from tuner.tables.row import DispatchKey, Row
from tuner.trials.subject import MIGRATE, NotInstalled, foreign_lines

SCHEMA = 2
MOST_BAD = 1000  # rows; with more of them it is no table
_ENDS = (b"]}", b"]", b"}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableFile:
    """``rows`` that are good, in their order; ``bad``: a line about each that is not. ``foreign``: records of operators
    that are not installed here. ``arch``: what the document names, None if it names none. ``data``: the file as it is.
    """

    path: Path
    rows: tuple[Row, ...] = ()
    bad: tuple[str, ...] = ()
    foreign: tuple[dict[str, Any], ...] = ()
    arch: str | None = None
    data: bytes = b""

    @property
    def passed_over(self) -> list[str]:
        """A line about each bad row, and one about each operator that is not installed here."""
        return [*self.bad, *foreign_lines(self.path, self.foreign, "row")]

    def keep_aside(self) -> Path:
        """Copy the file to ``<name>.damaged-<hash>`` beside it, where it stays when the table is written without its
        bad rows; returns that. The same file always gets the same name. Raises ``StoreError``."""
        digest = hashlib.sha256(self.data).hexdigest()[:12]
        aside = self.path.with_name(f"{self.path.name}.damaged-{digest}")
        write_if_new(aside, self.data)
        return aside


def read_table(path: AnyPath) -> TableFile:
    """What ``path`` holds; nothing when there is no such file.

    Raises ``CorruptFile`` for a file that is no table at all, ``InputError`` for another schema and for what cannot be
    read.
    """
    path = Path(path)
    data = read_bytes(path)
    if data is None:
        return TableFile(path=path)
    head, entries = _parsed(data, path)
    rows: dict[DispatchKey, Row] = {}
    bad: list[str] = []
    foreign: list[dict[str, Any]] = []
    for number, entry in entries:
        try:
            _take(entry, head["arch"], rows)
        except NotInstalled:
            foreign.append(entry)
        except InputError as error:
            bad.append(f"{path}: row {number} is passed over: {error}")
        if len(bad) > MOST_BAD:
            raise CorruptFile(path, f"more than {MOST_BAD} of its rows are none")
    return TableFile(
        path=path,
        rows=tuple(rows.values()),
        bad=tuple(bad),
        foreign=tuple(foreign),
        arch=head["arch"],
        data=data,
    )


def one_arch(rows: Iterable[Row], named: str | None, path: Path, *more: str) -> str | None:
    """That of ``rows``, the document and ``more``; a table without rows names its arch all the same.

    None when nobody names one. Raises ``InputError`` for two.
    """
    names = {row.key.arch for row in rows} | {*more} | ({named} if named else set())
    if len(names) > 1:
        raise InputError(f"{path} must hold rows of one arch, got {', '.join(sorted(names))}")
    return next(iter(names), None)


_Entries = Iterable[tuple[int, Any]]  # number of the row, and its record or the error of its line


def _parsed(data: bytes, path: Path) -> tuple[dict[str, Any], _Entries]:
    try:
        document = parse_json(data, path)
    except CorruptFile as error:
        return _by_lines(data, path, error)
    return _head(document, path), enumerate(document["rows"], start=1)


def _by_lines(data: bytes, path: Path, error: CorruptFile) -> tuple[dict[str, Any], _Entries]:
    """Raises ``error`` when not even the first line is that of a table."""
    first, _, rest = data.partition(b"\n")
    try:
        return _head(parse_json(first + b"]}", path), path), _lines(rest, path)
    except CorruptFile:
        raise error from None


def _lines(rest: bytes, path: Path) -> Iterator[tuple[int, Any]]:
    ended, number = False, 0
    for line in io.BytesIO(rest):
        text = line.strip().removesuffix(b",")
        ended = ended or text in _ENDS
        if not text or text in _ENDS:
            continue
        number += 1
        try:
            yield number, parse_json(text, path)
        except CorruptFile as error:
            yield number, InputError(error.what)
    if not ended:
        yield number + 1, InputError("the file ends before the table does")


def _head(document: Any, path: Path) -> dict[str, Any]:
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(schema, int) or isinstance(schema, bool) or not isinstance(document.get("rows"), list):
        raise CorruptFile(path, 'a dispatch table needs a number "schema" and a list "rows"')
    if schema != SCHEMA:
        raise InputError(
            f"{path} has schema {shown(schema)}, this version reads {SCHEMA}; "
            + (MIGRATE if schema < SCHEMA else "use the version that wrote it, or move it away")
        )
    arch = document.get("arch")
    if arch is not None and not isinstance(arch, str):
        raise CorruptFile(path, f'"arch" must be a name, got {shown(arch)}')
    return {"arch": arch}


def _take(entry: Any, arch: str | None, rows: dict[DispatchKey, Row]) -> None:
    """Raises ``InputError`` that says why not."""
    if isinstance(entry, InputError):
        raise entry
    if isinstance(entry, dict) and arch is not None and entry.get("arch") != arch:
        raise InputError(f"it is of {shown(entry.get('arch'))}, the table of {shown(arch)}")
    row = Row.from_record(entry)
    if row.key in rows:
        raise InputError(f"it repeats the key {row.key}")
    rows[row.key] = row
