"""The kernel's shared memory by name: which barrier an offset is, and whether copies keep to their region.

Offsets come from the budget, whose rows are in the order in which the kernel lays out its regions, without gaps.
"""

from __future__ import annotations

import bisect
import dataclasses
from typing import TYPE_CHECKING, Any

from kernel_space.core.budget import Budget
from kernel_space.machine.observe.trace import Observer

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Cta, Machine

ROLES = {0: "epilogue0", 1: "epilogue1", 2: "epilogue2", 3: "epilogue3", 4: "mma_warp", 5: "tma_warp"}
_SINGLE_BARRIER = "tmem_dealloc"
_BARRIER_SIDES = ("_full", "_empty")


@dataclasses.dataclass(frozen=True)
class Slot:
    """One piece of shared memory: bytes [``start``, ``end``) from the start of dynamic shared memory."""

    name: str
    start: int
    end: int


def smem_slots(budget: Budget) -> list[Slot]:
    """Every slot of every region in order of address: ``A[0]``, ``A[1]``, ..., ``ab_full[0]``, ..."""
    slots, offset = [], 0
    for row in budget.smem.rows:
        for number in range(row.copies):
            slots.append(Slot(f"{row.name}[{number}]", offset, offset + row.each))
            offset += row.each
    return slots


def barrier_names(budget: Budget) -> dict[int, str]:
    """Offset from the start of dynamic shared memory -> name: ``{230016: "ab_full[0]", ...}``."""
    return {slot.start: slot.name for slot in smem_slots(budget) if _is_barrier(slot.name)}


def _is_barrier(name: str) -> bool:
    ring = name.partition("[")[0]
    return ring == _SINGLE_BARRIER or ring.endswith(_BARRIER_SIDES)


class RegionWatch(Observer):
    """Collects copies that do not lie inside one slot of one region, and barriers and TMEM beyond the budget.

    ``findings``: one line each; a copy into two regions at once means that the regions overlap or that an offset is
    wrong. A TMA box may be smaller than its slot, never larger.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._slots = smem_slots(budget)
        self._starts = [slot.start for slot in self._slots]
        self._known: set[tuple[str, int, int]] = set()
        self.findings: list[str] = []

    def attach(self, machine: Machine) -> None:
        self._base = machine.program.layout.dynamic
        if machine.launch.smem_bytes != self._budget.smem_bytes:
            self.findings.append(
                f"the launch asks for {machine.launch.smem_bytes} bytes of shared memory, the budget holds "
                f"{self._budget.smem_bytes}"
            )

    def issued(self, operation: Any, cta: Cta) -> Any:
        kind = type(operation).__name__
        if kind == "TmaLoad":
            for _, offset, barrier in operation.targets:
                self._within("TMA load", offset, operation.tensor.footprint())
                self._on_barrier(barrier.offset)
        elif kind == "TensorStore":
            self._within("TMA store", operation.offset, operation.tensor.footprint())
        elif kind == "Commit":
            for barrier in operation.barriers:
                self._on_barrier(barrier.offset)
        return operation

    def _within(self, what: str, offset: int, size: int) -> None:
        start = offset - self._base
        if (what, start, size) in self._known:
            return
        self._known.add((what, start, size))
        first = self._slot(start)
        if first is None or _is_barrier(first.name) or start + size > first.end:
            last = self._slot(start + size - 1)
            self.findings.append(
                f"a {what} of {size} bytes at offset {start:#x} must lie inside one slot, but reaches from "
                f"{first.name if first else 'nowhere'} to {last.name if last else 'nowhere'}"
            )

    def _on_barrier(self, offset: int) -> None:
        start = offset - self._base
        if ("barrier", start, 8) in self._known:
            return
        self._known.add(("barrier", start, 8))
        slot = self._slot(start)
        if slot is None or not _is_barrier(slot.name) or slot.start != start:
            self.findings.append(
                f"an mbarrier at offset {start:#x} is no barrier of the budget ({slot.name if slot else 'no region'})"
            )

    def _slot(self, offset: int) -> Slot | None:
        at = bisect.bisect_right(self._starts, offset) - 1
        return self._slots[at] if at >= 0 and offset < self._slots[at].end else None
