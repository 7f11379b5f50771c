"""One PTX instruction and which registers it reads and writes, found out once per instruction."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

from kernel_space.machine.ptx.operands import Operand, Pair, Reg, Vec, registers_of

NO_DESTINATION = frozenset(
    {"bar", "barrier", "bra", "ret", "exit", "trap", "nanosleep", "setmaxnreg", "st", "red", "deposit"}
)


@functools.lru_cache(maxsize=4096)
def _tokens(opcode: str) -> tuple[str, ...]:
    """A kernel of a thousand instructions has a hundred opcodes."""
    return tuple(opcode.split("."))


@dataclasses.dataclass(frozen=True, slots=True)
class Instr:
    """``@guard opcode operands;`` at PTX ``line``; ``loc`` is (file index, source line) or None.

    The rest follows from these; ``_bits`` are sets of registers as integers, by ``Reg.slot``.

    ``tokens``       the words of the opcode
    ``definitions``  registers that it writes
    ``uses``         those that it reads: sources, sums that ``wgmma`` adds to, what a guard may leave as it was
    ``source_bits``  those whose values it works with, the guard among them
    """

    line: int
    opcode: str
    operands: tuple[Operand, ...]
    guard: Reg | None = None
    negated: bool = False
    loc: tuple[int, int] | None = None
    text: str = ""
    tokens: tuple[str, ...] = dataclasses.field(init=False, repr=False, compare=False)
    definitions: tuple[Reg, ...] = dataclasses.field(init=False, repr=False, compare=False)
    uses: tuple[Reg, ...] = dataclasses.field(init=False, repr=False, compare=False)
    written_bits: int = dataclasses.field(init=False, repr=False, compare=False)
    source_bits: int = dataclasses.field(init=False, repr=False, compare=False)
    read_bits: int = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tokens, operands = _tokens(self.opcode), self.operands
        definitions: tuple[Reg, ...] = ()
        if _has_destination(tokens, operands):
            definitions, operands = registers_of(operands[0]), operands[1:]
        uses: tuple[Reg, ...] = ()
        for operand in operands:
            uses += registers_of(operand)
        if self.guard is not None:
            uses += (self.guard,)
        sources = read = bits_of(uses)
        written = bits_of(definitions)
        if self.guard is not None or tokens[0] == "wgmma":
            uses, read = uses + definitions, sources | written
        for name, value in zip(_DERIVED, (tokens, definitions, uses, written, sources, read), strict=True):
            object.__setattr__(self, name, value)


_DERIVED = ("tokens", "definitions", "uses", "written_bits", "source_bits", "read_bits")


def _has_destination(tokens: tuple[str, ...], operands: tuple[Operand, ...]) -> bool:
    if tokens[0] in NO_DESTINATION or not operands or tokens[:2] == ("tcgen05", "dealloc"):
        return False
    return isinstance(operands[0], Reg | Vec | Pair)


def bits_of(registers: Iterable[Reg]) -> int:
    """The set of ``registers`` as an integer, by ``Reg.slot``."""
    bits = 0
    for register in registers:
        bits |= 1 << register.slot
    return bits
