"""Reads of registers that nobody wrote.

Only a register that is live into the entry block can be read before it is written. For those alone, of which a
compiler's kernel normally has none, each warp keeps the mask of lanes that have written the register, and the
translator emits a test before every read and an update behind every write. PTX leaves such a value undefined.

NVVM pads with undefined values: ``mov.b32 %r80, {%rs2, %rs3}`` where nobody writes ``%rs3`` and only the other half is
used later. A part of such a pack is therefore no read as long as another part of it is no candidate; what becomes of
the padding is not followed.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kernel_space.machine.ptx.cfg import Graph
from kernel_space.machine.ptx.operands import Reg, Vec
from kernel_space.machine.values.faults import Fault, SimStatus

if TYPE_CHECKING:
    from kernel_space.machine.opcodes.writer import Writer
    from kernel_space.machine.ptx.instruction import Instr
    from kernel_space.machine.run.machine import Warp


class UnwrittenRegister(Fault):
    """A register was read by lanes that had not written it."""

    status = SimStatus.ILLEGAL_ACCESS


def candidates(graph: Graph) -> frozenset[int]:
    """Slots of registers that some path from the entry reads before it writes them in every lane."""
    live = graph.live_in[0] if graph.blocks else 0
    return frozenset(slot for slot in range(live.bit_length()) if live >> slot & 1)


class WriteTracker:
    """Emits the tests and updates. ``slots``: the candidates; without any nothing is ever emitted."""

    def __init__(self, writer: Writer, slots: frozenset[int]) -> None:
        self.writer, self.slots = writer, slots

    def reads(self, instr: Instr) -> None:
        """Before ``instr``, under its guard: test its sources. What the guard leaves unchanged is not a source."""
        if self.slots and not self._pads(instr):
            for register in dict.fromkeys(dataclasses.replace(instr, guard=None).uses):
                self.read(register)

    def _pads(self, instr: Instr) -> bool:
        """A pack of which at least one part is surely written."""
        if instr.tokens[0] != "mov" or not isinstance(instr.operands[1], Vec):
            return False
        return any(
            not isinstance(part, Reg) or part.slot not in self.slots for part in instr.operands[1].items
        )

    def read(self, register: Reg | None) -> None:
        if register is None or register.slot not in self.slots:
            return
        writer, slot = self.writer, register.slot
        writer.emit(
            f"if {writer.mask} & ~w.written[{slot}]: unwritten(w, {slot}, {writer.mask}, {writer.site})"
        )

    def writes(self, instr: Instr) -> None:
        """Behind ``instr``, under its guard."""
        for register in instr.definitions if self.slots else ():
            if register.slot in self.slots:
                self.writer.emit(f"w.written[{register.slot}] |= {self.writer.mask}")


def unwritten(warp: Warp, slot: int, mask: int, site: int) -> None:
    """Raises ``UnwrittenRegister``; ``site`` becomes the place of the report."""
    warp.site = site
    lanes = mask & ~warp.written[slot]
    first, count = (lanes & -lanes).bit_length() - 1, lanes.bit_count()
    name = warp.machine.program.kernel.registers[slot].name
    raise UnwrittenRegister(
        f"register {name} is read but was never written in {count} of the warp's lanes, first lane {first}"
    )
