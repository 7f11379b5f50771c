"""One line of a journal: JSON with a checksum at its end, ``...,"crc":"89abcdef"}``.

The checksum is the CRC-32 of the line's bytes before the comma. It tells a line that a disk, a copy or an editor
changed from one that is as it was written; who means harm can compute it too. Lines of earlier versions have none: they
are read, and counted as unverified.
"""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from kernel_space.core.errors import InputError
from tuner.files.record_checks import check_plain
from tuner.files.store import CorruptFile, parse_json
from tuner.trials.outcome import Trial

TRIAL, IDENTITY, NOTE, ATTEMPT, GIVEN_UP = "trial", "identity", "note", "attempt", "given_up"
"""What a line holds: a word that it has, or else a trial."""
CRC = "crc"
MOST_BYTES = 1 << 29  # of a journal: a hundred times the trials of a long search
_SEAL = re.compile(rb',"crc":"([0-9a-f]{8})"\}$')
_NOWHERE = Path("line")


class Line(NamedTuple):
    """``word``: what it holds; ``held``: its record, of a trial the ``Trial``. ``verified``: it had a checksum."""

    word: str
    held: Any
    verified: bool


def write_line(record: dict[str, Any]) -> bytes:
    """``record`` with its checksum and a newline. Raises ``ValueError`` for numbers that are not finite."""
    text = json.dumps(record, separators=(",", ":"), allow_nan=False).encode()[:-1]
    return text + f',"{CRC}":"{zlib.crc32(text):08x}"}}\n'.encode()


def unsealed(line: bytes) -> tuple[bytes, bool]:
    """``line`` without its checksum, and whether it has one. Raises ``InputError`` for one that is not of its text."""
    seal = _SEAL.search(line)
    if seal is None:
        return line, False
    text = line[: seal.start()]
    if zlib.crc32(text) != int(seal[1], 16):
        raise InputError("its checksum is not that of its text")
    return text + b"}", True


def read_line(line: bytes) -> Line:
    """One whole line, without its newline. Raises ``InputError`` that says what is wrong with it."""
    line, verified = unsealed(line)
    try:
        record = parse_json(line, _NOWHERE)
    except CorruptFile as error:
        raise InputError(f"no JSON: {error.what}") from None
    if not isinstance(record, dict) or CRC in record:
        raise InputError("no record")
    check_plain(record, printable=False)
    for word in (IDENTITY, NOTE, ATTEMPT, GIVEN_UP):
        if word in record:
            return Line(word, record, verified)
    trial = Trial.from_record(record)
    try:
        _ = trial.timing
    except ValueError as error:
        raise InputError(str(error)) from None
    return Line(TRIAL, trial, verified)
