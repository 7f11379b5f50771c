"""Which loads of tensor memory are known to be over without ``tcgen05.wait::ld``: those whose registers were used.

PTX ISA, canonical synchronisation patterns of tcgen05, "register dependency, same thread": who needs a register of a
``tcgen05.ld`` comes behind it, waited for or not. So using registers without a wait is no finding; handing the columns
to somebody else (an arrival, a barrier) while no register of the load has been needed is one. A ``mov`` only gives a
register another name.

What counts is what the warp has executed: a use behind a branch that it did not take says nothing.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernel_space.machine.opcodes.writer import Writer
    from kernel_space.machine.ptx.parse import Kernel
    from kernel_space.machine.run.machine import Warp


@dataclasses.dataclass(slots=True)
class TensorLoad:
    """A load of a warp: its number among them, its instruction, and whether a register of it was needed since."""

    number: int
    site: int
    used: bool = False


def users_of_loads(kernel: Kernel) -> dict[int, frozenset[int]]:
    """Instruction -> the ``tcgen05.ld`` of which it needs a register."""
    held: dict[int, frozenset[int]] = {}
    for site, instr in enumerate(kernel.instrs):
        if instr.tokens[:2] == ("tcgen05", "ld"):
            for register in instr.definitions:
                held[register.slot] = held.get(register.slot, frozenset()) | {site}
    while held and _follow_moves(kernel, held):
        pass
    found = {
        site: _held_by(held, instr.uses)
        for site, instr in enumerate(kernel.instrs)
        if instr.tokens[0] != "mov"
    }
    return {site: loads for site, loads in found.items() if loads}


def _held_by(held: dict[int, frozenset[int]], registers: tuple) -> frozenset[int]:
    return frozenset().union(*(held.get(register.slot, ()) for register in registers))


def _follow_moves(kernel: Kernel, held: dict[int, frozenset[int]]) -> bool:
    """Has a register got another name?"""
    changed = False
    for instr in kernel.instrs:
        if instr.tokens[0] != "mov" or not (loads := _held_by(held, instr.uses)):
            continue
        for register in instr.definitions:
            old = held.get(register.slot, frozenset())
            changed |= not loads <= old
            held[register.slot] = old | loads
    return changed


def emit_use(c: Writer) -> None:
    """Before an instruction; no text unless it may need a register of a load."""
    if c.site in c.tensor_users:
        c.emit(f"if w.tensor_loads: loads_used(w, {c.site})")


def loads_used(w: Warp, site: int) -> None:
    """``w.tensor_loads`` has something with race checking alone: loads that no wait covers, the oldest first."""
    sources = w.machine.program.tensor_users[site]
    for load in w.tensor_loads:
        if load.site in sources:
            load.used = True
