"""Operands of PTX instructions and their parser."""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Callable

WIDTHS = {
    "pred": 1,
    **{kind + size: int(size) for kind in "bus" for size in ("8", "16", "32", "64")},
    "b128": 128,
    "f16": 16,
    "bf16": 16,
    "f16x2": 32,
    "bf16x2": 32,
    "f32": 32,
    "f32x2": 64,
    "f64": 64,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Reg:
    """A declared register; ``width`` in bits, 1 for predicates. ``slot`` indexes the register file."""

    name: str
    width: int
    slot: int


@dataclasses.dataclass(frozen=True, slots=True)
class Imm:
    """An integer literal; floats are stored as their bits."""

    value: int


@dataclasses.dataclass(frozen=True, slots=True)
class Special:
    """A predefined register such as ``%tid.x``."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Symbol:
    """A label, a parameter, a variable, or the sink ``_``."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Vec:
    """``{a, b, c}``"""

    items: tuple[Operand, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Mem:
    """``[base+offset]`` or ``[base, {coordinates}]``"""

    base: Operand
    offset: int = 0
    coords: tuple[Operand, ...] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """``a|b``: the two destinations of ``elect.sync``, ``setp`` and ``shfl``."""

    first: Operand
    second: Operand


@dataclasses.dataclass(frozen=True, slots=True)
class Not:
    """``!p``"""

    operand: Operand


Operand = Reg | Imm | Special | Symbol | Vec | Mem | Pair | Not
_MARK = re.compile(r"[][{}(),]")
_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)U?")
_HEX_FLOAT = re.compile(r"0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})")
_BASE_AND_OFFSET = re.compile(r"(.*?)\s*\+\s*([+-]?(?:0[xX][0-9a-fA-F]+|[0-9]+))")
_SYMBOL = re.compile(r"[A-Za-z_$.][\w$.]*")
_DECIMAL_FLOAT = re.compile(r"[+-]?[0-9]+\.[0-9]*([eE][+-]?[0-9]+)?")


def registers_of(operand: Operand) -> tuple[Reg, ...]:
    """Every register that an operand mentions."""
    match operand:
        case Reg():
            return (operand,)
        case Imm() | Symbol() | Special():
            return ()
        case Vec(items):
            parts: tuple[Operand, ...] = items
        case Pair(first, second):
            parts = (first, second)
        case Not(inner):
            return registers_of(inner)
        case Mem(base, _, coords):
            parts = (base, *(coords or ()))
    return tuple(register for part in parts for register in registers_of(part))


def split_top(text: str) -> list[str]:
    """Split at commas outside of brackets and braces."""
    parts, depth, start = [], 0, 0
    for mark in _MARK.finditer(text):
        char = mark[0]
        if char in "[{(":
            depth += 1
        elif char in "]})":
            depth -= 1
        elif depth == 0:
            parts.append(text[start : mark.start()].strip())
            start = mark.end()
    last = text[start:].strip()
    return [*parts, last] if last or parts else []


def parse_integer(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-").rstrip("U")
    if len(digits) > 1 and digits[0] == "0" and digits[1] not in "xX":
        return sign * int(digits, 8)
    return sign * int(digits, 0)


def parse_operand(text: str, lookup: Callable[[str], Reg | Vec | None]) -> Operand:
    """One operand. ``lookup`` finds declared registers. Raises ``ValueError`` for text it cannot read."""
    if text.startswith("{"):
        return Vec(tuple(parse_operand(part, lookup) for part in split_top(text[1:-1])))
    if text.startswith("["):
        return _parse_memory(text[1:-1].strip(), lookup)
    if text.startswith("!"):
        return Not(parse_operand(text[1:].strip(), lookup))
    if "|" in text:
        first, second = text.split("|")
        return Pair(parse_operand(first.strip(), lookup), parse_operand(second.strip(), lookup))
    return _parse_scalar(text, lookup)


def _parse_scalar(text: str, lookup: Callable[[str], Reg | Vec | None]) -> Operand:
    if _INTEGER.fullmatch(text):
        return Imm(parse_integer(text))
    register = lookup(text)
    if register is not None:
        return register
    hexadecimal = _HEX_FLOAT.fullmatch(text)
    if hexadecimal:
        return Imm(int(hexadecimal[1] or hexadecimal[2], 16))
    if _DECIMAL_FLOAT.fullmatch(text):
        return Imm(struct.unpack("<Q", struct.pack("<d", float(text)))[0])
    if text.startswith("%"):
        return Special(text[1:])
    if _SYMBOL.fullmatch(text):
        return Symbol(text)
    raise ValueError(f"cannot read operand {text!r}")


def _parse_memory(text: str, lookup: Callable[[str], Reg | Vec | None]) -> Mem:
    parts = split_top(text)
    base, offset = _parse_base(parts[0], lookup)
    if len(parts) == 1:
        return Mem(base, offset)
    coords = [parse_operand(part, lookup) for part in parts[1:]]
    if len(coords) == 1 and isinstance(coords[0], Vec):
        return Mem(base, offset, coords[0].items)
    return Mem(base, offset, tuple(coords))


def _parse_base(text: str, lookup: Callable[[str], Reg | Vec | None]) -> tuple[Operand, int]:
    match = _BASE_AND_OFFSET.fullmatch(text) if "+" in text else None
    if match:
        return parse_operand(match[1].strip(), lookup), parse_integer(match[2])
    return parse_operand(text, lookup), 0
