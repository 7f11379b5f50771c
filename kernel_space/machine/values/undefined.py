"""Undefined bits of registers: how they are held, where they came from, and the fault when one matters.

A warp keeps ``undefined``: slot of a register -> ``Held``, for the registers of which some bit is undefined; nearly
always it is empty. ``loaded`` and ``storing`` carry undefined bits between memory and registers for the length of one
instruction.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernel_space.machine.values.faults import Fault, SimStatus
from kernel_space.machine.values.lanes import LANES

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Warp

Bits = NDArray[np.uint64]  # [32 lanes], a bit is set where that bit of the value is undefined


@dataclasses.dataclass(frozen=True, slots=True)
class Birth:
    """Where an undefined value came from, in words; and the first instruction that read it."""

    what: str
    reader: str

    def __str__(self) -> str:
        return f"{self.what}; first read {self.reader}"


class Held(NamedTuple):
    bits: Bits
    birth: Birth


class Carried(NamedTuple):
    """Undefined bits of the items of one memory access, 32 lanes each."""

    items: list[Bits]
    birth: Birth


class UndefinedValue(Fault):
    """An undefined value reached something that must be defined."""

    status = SimStatus.ILLEGAL_ACCESS


def all_bits(width: int) -> np.uint64:
    return np.uint64((1 << min(width, 64)) - 1)


def frozen(values: NDArray[Any]) -> NDArray[Any]:
    values.setflags(write=False)
    return values


NOTHING: Bits = frozen(np.zeros(LANES, np.uint64))


def where(w: Warp, site: int) -> str:
    """An instruction of the program and who executes it, in words."""
    from kernel_space.machine.observe.report import place

    return f"by {w.who} at {place(w.machine, site)}"


def birth_at(w: Warp, site: int, what: str) -> Birth:
    """The birth of what ``site`` reads first; one per instruction of a warp, of which ``what`` is an example."""
    found = w.births.get(site)
    if found is None:
        found = w.births[site] = Birth(what, where(w, site))
    return found


def first_undefined(w: Warp) -> dict[int, Held]:
    """At the start of a warp: registers that may be read before they are written."""
    program = w.machine.program
    everything = frozen(np.full(LANES, all_bits(64)))
    registers = program.kernel.registers
    return {
        slot: Held(
            everything & all_bits(registers[slot].width),
            Birth(f"register {registers[slot].name}, never written", ""),
        )
        for slot in program.maybe_unwritten
    }
