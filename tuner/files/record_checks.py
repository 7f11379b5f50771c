"""What a record that came from a file must be before anything is done with it: plain JSON, and names that lead nowhere.

A dispatch table, an index of objects or a journal may come from anybody. Whatever in it becomes part of a path is
checked where it is parsed, and so is what could stop the program later: a number of a million digits, text that no
terminal can show.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from kernel_space.core.errors import InputError

DEPTH = 16
TEXT = 1 << 20  # characters
LARGEST = 1 << 63
_SHA256 = re.compile(r"[0-9a-f]{64}")
_OBJECT = re.compile(r"[0-9a-f]{16}\.o")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
DIGITS = 4000  # int() raises a ValueError beyond 4300
_ENDLESS = re.compile(rf"[0-9]{{{DIGITS + 1}}}")
_HALF = re.compile(r"[\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def check_plain(value: Any, *, printable: bool = True) -> None:
    """Raises ``InputError`` for JSON that no record of ours has: nested ``DEPTH`` deep, with numbers beyond 64 bits, or
    with text of more than ``TEXT`` characters or with halves of characters in it; if ``printable``, control characters.
    """
    texts: list[str] = []
    level, depth = [value], 0
    while level:
        if depth > DEPTH:
            raise InputError(f"it is nested more than {DEPTH} deep")
        level, depth = _below(level, texts), depth + 1
    longest = max(map(len, texts), default=0)
    if longest > TEXT:
        raise InputError(f"text must have at most {TEXT} characters, got {longest}")
    joined = "\n".join(texts)
    if found := (_CONTROL if printable else _HALF).search(joined):
        raise InputError(f"text must not have the character {found[0]!a}")
    if _ENDLESS.search(joined):
        raise InputError(f"text must not have a number of more than {DIGITS} digits")


def _below(level: list[Any], texts: list[str]) -> list[Any]:
    """What the lists and objects of one level hold; its texts are added to ``texts``, its numbers checked."""
    found: list[Any] = []
    for one in level:
        kind = type(one)
        if kind is str:
            texts.append(one)
        elif kind is dict:
            texts += one
            found += one.values()
        elif kind is list:
            found += one
        elif kind is float and not math.isfinite(one):
            raise InputError("a number is not finite")
        elif kind is int and not -LARGEST <= one < LARGEST:
            raise InputError("a number has more than 64 bits")
    return found


def check_texts(record: Any, names: Iterable[str]) -> None:
    """Raises ``InputError`` unless the attributes ``names`` of ``record`` are text."""
    for name in names:
        if not isinstance(value := getattr(record, name), str):
            raise InputError(f"{name} must be text, got {shown(value)}")


def check_numbers(record: Any, names: Iterable[str]) -> None:
    """Raises ``InputError`` unless the attributes ``names`` of ``record`` are numbers, or None."""
    for name in names:
        value = getattr(record, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise InputError(f"{name} must be a number, got {shown(value)}")


def check_whole(record: Any, names: Iterable[str]) -> None:
    """Raises ``InputError`` unless the attributes ``names`` of ``record`` are whole numbers."""
    for name in names:
        if type(value := getattr(record, name)) is not int:
            raise InputError(f"{name} must be a whole number, got {shown(value)}")


def check_sha256(name: str, value: Any) -> None:
    """Also what a build key looks like."""
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise InputError(f"{name} must be 64 hexadecimal digits, got {shown(value)}")


def check_file_name(name: str, value: Any) -> None:
    if not isinstance(value, str) or not _FILE.fullmatch(value):
        raise InputError(f"{name} must be the plain name of a file, got {shown(value)}")


def check_object_name(name: str, value: Any, sha256: str) -> None:
    """Of an object in a bundle: the beginning of its hash."""
    if not isinstance(value, str) or not _OBJECT.fullmatch(value) or not sha256.startswith(value[:16]):
        raise InputError(
            f"{name} must be the first 16 digits of the object's SHA-256 and .o, got {shown(value)}"
        )


def check_symbol(name: str, value: Any) -> None:
    if not isinstance(value, str) or not _SYMBOL.fullmatch(value):
        raise InputError(f"{name} must be the beginning of a symbol, got {shown(value)}")


def shown(value: Any) -> str:
    """``value`` for an error, of any size and kind, in printable ASCII."""
    if isinstance(value, str):
        return f"{value[:60]!a}{'...' if len(value) > 60 else ''}"
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < LARGEST):
        return repr(value)
    return f"a {type(value).__name__}"
