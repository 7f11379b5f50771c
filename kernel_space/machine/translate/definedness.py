"""Which registers may hold undefined bits, and the text that keeps track of them.

A register that is live into the entry block may be read before it is written; what loads and products bring may be
undefined as well, and whatever is made of these. Only instructions that touch such a register get text: one test of
the warp's ``undefined``, which is nearly always empty, before them, and one of what a load brought behind it.
``flow.py`` has what happens when a test succeeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_space.machine.ptx.cfg import Graph
from kernel_space.machine.ptx.operands import Imm, Not, Reg, Special, Symbol
from kernel_space.machine.translate.flow_rules import needed_values

if TYPE_CHECKING:
    from kernel_space.machine.opcodes.writer import Writer
    from kernel_space.machine.ptx.instruction import Instr


def candidates(graph: Graph) -> frozenset[int]:
    """Slots of registers that some path from the entry reads before it writes them in every lane."""
    live = graph.live_in[0] if graph.blocks else 0
    return frozenset(slot for slot in range(live.bit_length()) if live >> slot & 1)


def brings(instr: Instr) -> bool:
    """May its results be undefined though its sources are defined? Parameters are always defined."""
    tokens = instr.tokens
    if tokens[0] in ("ld", "ldu"):
        return "param" not in tokens
    return tokens[0] in ("atom", "ldmatrix") or tokens[:2] == ("tcgen05", "ld") or multiplies(instr)


def multiplies(instr: Instr) -> bool:
    return instr.tokens[:2] in (("wgmma", "mma_async"), ("mma", "sync"))


def stores(instr: Instr) -> bool:
    """Does it take values of registers to memory?"""
    return instr.tokens[0] in ("st", "red", "atom", "stmatrix") or instr.tokens[:2] == ("tcgen05", "st")


def carries(instr: Instr) -> bool:
    return "cc" in instr.tokens or instr.tokens[0] in ("addc", "subc", "madc")


def maybe_undefined(graph: Graph) -> int:
    """The set of registers (bits by slot) that may hold undefined bits; the carry of a warp counts as the last one."""
    carry = 1 << len(graph.kernel.registers)
    found = 0
    for slot in candidates(graph):
        found |= 1 << slot
    flows = []
    for instr in graph.kernel.instrs:
        if brings(instr):
            found |= instr.written_bits
        elif instr.written_bits:
            extra = carry if carries(instr) else 0
            flows.append((instr.source_bits | extra, instr.written_bits | extra))
    while True:
        before = found
        for sources, written in flows:
            if sources & found:
                found |= written
        if found == before:
            return found


class Tracker:
    """Emits the tests of one function. ``maybe``: as ``maybe_undefined``; 0 for a program that does not track."""

    def __init__(self, writer: Writer, maybe: int) -> None:
        self.writer, self.maybe = writer, maybe
        self.used = False  # the text needs ``U``

    def _emit(self, line: str) -> None:
        self.used = True
        self.writer.emit(line)

    def before(self, instr: Instr) -> None:
        """Under the guard of ``instr``: what its undefined sources lead to."""
        carry = 1 << len(self.writer.graph.kernel.registers) if carries(instr) else 0
        if (instr.read_bits | instr.written_bits | carry) & self.maybe:
            values = self._values(instr)
            self._emit(f"if U: step(w, U, {self.writer.site}, {self.writer.mask}, ({values}))")

    def _values(self, instr: Instr) -> str:
        """Values that decide which bits of a result are undefined; lane masks of predicates."""
        writer = self.writer
        texts = []
        for number, width in needed_values(instr):
            operand = instr.operands[number]
            known = isinstance(operand, Reg | Imm | Special | Symbol | Not)
            text = writer.predicate(operand) if width == 1 else writer.read(operand, width) if known else "0"
            texts.append(f"{text}, ")
        return "".join(texts)

    def after(self, instr: Instr) -> None:
        """Behind ``instr``, under its guard: what it brought."""
        if not self.maybe:
            return
        site, mask = self.writer.site, self.writer.mask
        if multiplies(instr):
            self._emit(f"if U or w.operand_rows: product(w, U, {site}, {self._accumulates(instr)})")
        elif instr.tokens[0] == "red":
            self.writer.emit("w.loaded = None")  # the old value is nobody's
        elif brings(instr):
            self._emit(f"if w.loaded is not None: take_loaded(w, U, {site}, {mask})")
        if stores(instr) and instr.read_bits & self.maybe:
            self._emit("if U: w.storing = None")

    def _accumulates(self, instr: Instr) -> str:
        if instr.tokens[0] == "mma":
            return "True"
        scale = instr.operands[3]
        text = self.writer.predicate(scale)
        return f"first_lane({text}, {self.writer.mask})" if self.writer.varies(scale) else text

    def guard(self, register: Reg | None, what: str) -> None:
        """``register`` decides what is executed, as ``what`` says."""
        if register is not None and self.maybe >> register.slot & 1:
            self._emit(
                f"if U: decide(w, U, {register.slot}, {self.writer.mask}, {self.writer.site}, {what!r})"
            )
