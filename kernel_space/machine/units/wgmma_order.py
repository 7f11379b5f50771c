"""What orders ``wgmma.mma_async`` with the rest of its warp. PTX ISA 9.7.15.7 "wgmma.fence", "wgmma.commit_group",
"wgmma.wait_group".

The product is made when it is issued (``wgmma.py``), but until a wait covers its group its registers belong to it:
nobody else may touch its accumulators or write its fragments of A. Between any other access to a register and a wgmma
that uses it there must be a fence. What it reads of shared memory is the race checker's business.

Sets of registers are integers; ``register_bits`` gives each register that some wgmma of the kernel uses a bit.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from kernel_space.machine.ptx.operands import Operand, Reg, Vec, registers_of
from kernel_space.machine.values.faults import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kernel_space.machine.opcodes.writer import Writer
    from kernel_space.machine.ptx.instruction import Instr
    from kernel_space.machine.ptx.parse import Kernel
    from kernel_space.machine.run.machine import Warp

EVERY_REGISTER = -1


class Issued(NamedTuple):
    accumulators: int
    fragments: int
    shape: str
    site: int


@dataclasses.dataclass(slots=True)
class WgmmaGroups:
    """Of one warp. ``number``: of the group that the next commit closes; ``pending``: committed ones, oldest first."""

    number: int = 1
    open: list[Issued] = dataclasses.field(default_factory=list)
    pending: deque[list[Issued]] = dataclasses.field(default_factory=deque)

    def under_way(self) -> Iterable[Issued]:
        for group in (*self.pending, self.open):
            yield from group


def register_bits(kernel: Kernel) -> dict[int, int]:
    """``Reg.slot`` -> bit, of the accumulators and fragments of every wgmma."""
    slots = dict.fromkeys(
        register.slot
        for instr in kernel.instrs
        if instr.tokens[:2] == ("wgmma", "mma_async")
        for operand in instr.operands[:2]
        for register in _vector(operand)
    )
    return {slot: 1 << at for at, slot in enumerate(slots)}


def _vector(operand: Operand) -> tuple[Reg, ...]:
    return registers_of(operand) if isinstance(operand, Vec) else ()


def _bits(registers: Iterable[Reg], bits: Mapping[int, int]) -> int:
    found = 0
    for register in registers:
        found |= bits.get(register.slot, 0)
    return found


def emit_issue(c: Writer, i: Instr) -> None:
    """Before the product of a wgmma."""
    accumulators, fragments = (_bits(_vector(operand), c.wgmma_bits) for operand in i.operands[:2])
    c.emit(f"wgmma_issue(w, {accumulators:#x}, {fragments:#x}, {i.tokens[4]!r}, {c.site})")


def emit_access(c: Writer, i: Instr) -> None:
    """Before any other instruction; no text unless it touches a register of a wgmma."""
    if not c.wgmma_bits or i.tokens[0] == "wgmma":
        return
    writes = _bits(i.definitions, c.wgmma_bits)
    touched = writes | _bits(i.uses, c.wgmma_bits)
    if touched:
        c.emit(f"if w.wgmma_registers & {touched:#x}: wgmma_access(w, {touched:#x}, {writes:#x}, {c.site})")
        if i.tokens[0] != "mov":
            c.emit(f"w.unfenced |= {touched:#x}")


def wgmma_fence(w: Warp) -> None:
    w.unfenced = 0


def wgmma_issue(w: Warp, accumulators: int, fragments: int, shape: str, site: int) -> None:
    """Raises ``ProtocolError``."""
    w.site = site
    if loose := w.unfenced & (accumulators | fragments):
        first = "" if w.unfenced == EVERY_REGISTER else f" behind the last access to {_name(w, loose)}"
        raise ProtocolError(f"wgmma.mma_async without a wgmma.fence{first}")
    for other in w.wgmma.under_way():
        if other.shape != shape and (both := other.accumulators & accumulators):
            raise ProtocolError(_under_way(w, other, both, f"used by a wgmma of another shape, {shape}"))
        if both := other.accumulators & fragments | other.fragments & accumulators:
            raise ProtocolError(_under_way(w, other, both, "used otherwise by another wgmma"))
    w.wgmma.open.append(Issued(accumulators, fragments, shape, site))
    w.wgmma_registers |= accumulators | fragments


def wgmma_access(w: Warp, touched: int, writes: int, site: int) -> None:
    """A register of a wgmma that is under way is touched. Raises ``ProtocolError``; A's may be read."""
    w.site = site
    for other in w.wgmma.under_way():
        if found := touched & other.accumulators:
            raise ProtocolError(_under_way(w, other, found, "written" if found & writes else "read"))
        if found := writes & other.fragments:
            raise ProtocolError(_under_way(w, other, found, "written"))


def wgmma_commit(w: Warp) -> None:
    groups = w.wgmma
    groups.pending.append(groups.open)
    groups.open = []
    groups.number += 1


def wgmma_wait(w: Warp, most: int, site: int) -> None:
    """At most ``most`` committed groups stay under way."""
    w.site = site
    groups = w.wgmma
    while len(groups.pending) > most:
        groups.pending.popleft()
    w.wgmma_registers = 0
    for one in groups.under_way():
        w.wgmma_registers |= one.accumulators | one.fragments
    if w.races is not None:
        w.races.wgmma_waited(w, groups.number - 1 - len(groups.pending))


def _under_way(w: Warp, other: Issued, registers: int, what: str) -> str:
    line = w.machine.program.sites[other.site].line
    return f"{_name(w, registers)} is {what}, and no wgmma.wait_group covers the wgmma of PTX line {line} that has it"


def _name(w: Warp, registers: int) -> str:
    program = w.machine.program
    lowest = registers & -registers
    return next(
        program.kernel.registers[slot].name for slot, bit in program.wgmma_bits.items() if bit == lowest
    )
