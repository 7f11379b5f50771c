"""Kernel entries of a PTX text and the sizes of their parameters."""

from __future__ import annotations

import dataclasses
import re

from kernel_space.core.errors import InputError

_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\((.*?)\))?\s*(?=[.{])", re.S)
# .param [.align N] .type [.ptr [.space] [.align N]] name[size]; PTX ISA, "Kernel Function Parameters"
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.([bsuf])(8|16|32|64)\s+"
    r"(?:\.ptr\s+(?:\.\w+\s+)*?(?:\.align\s+\d+\s+)?)?([\w$]+)\s*(?:\[(\d+)\])?\s*$"
)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """Bytes. ``alignment`` is the declared one, or the size of a scalar."""

    name: str
    size: int
    alignment: int


def entries(ptx: str) -> dict[str, tuple[Parameter, ...]]:
    """Kernel name -> its parameters in order. Raises ``InputError`` for a declaration it cannot read."""
    text = re.sub(r"//[^\n]*", "", ptx)
    return {name: tuple(_parameters(body)) for name, body in _ENTRY.findall(text)}


def _parameters(body: str) -> list[Parameter]:
    return [_parameter(item.strip()) for item in body.split(",") if item.strip()]


def _parameter(text: str) -> Parameter:
    match = _PARAMETER.match(text)
    if match is None:
        raise InputError(f"cannot read the PTX parameter declaration {text!r}")
    align, _type, bits, name, count = match.groups()
    width = int(bits) // 8
    return Parameter(name=name, size=width * int(count or 1), alignment=int(align or width))


def body(ptx: str, entry: str) -> str:
    """The text of one kernel, from its name to where the next one or the end of the file is."""
    starts = [match.start() for match in _ENTRY.finditer(ptx)]
    for start, end in zip(starts, [*starts[1:], len(ptx)], strict=True):
        if (match := _ENTRY.match(ptx, start)) and match.group(1) == entry:
            return ptx[start:end]
    raise InputError(f"there is no kernel {entry} in the PTX")
