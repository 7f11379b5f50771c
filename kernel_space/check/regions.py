"""The kernel's shared memory by name: which barrier an offset is, and whether copies keep to their region.

For kernels that lay out shared memory as the rows of their budget say, in order and without gaps (``core.traits``).
``is_barrier`` tells which rows are rings of mbarriers.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernel_space.core.budget import Budget
from kernel_space.machine.observe.trace import Observer

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Cta, Machine

IsBarrier = Callable[[str], bool]


@dataclasses.dataclass(frozen=True)
class Slot:
    """One piece of shared memory: bytes [``start``, ``end``) from the start of dynamic shared memory."""

    row: str
    number: int
    start: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.row}[{self.number}]"


def smem_slots(budget: Budget) -> list[Slot]:
    """Every slot of every region in order of address: ``A[0]``, ``A[1]``, ..., ``ab_full[0]``, ..."""
    slots, offset = [], 0
    for row in budget.smem.rows:
        for number in range(row.copies):
            slots.append(Slot(row.name, number, offset, offset + row.each))
            offset += row.each
    return slots


def barrier_names(budget: Budget, is_barrier: IsBarrier) -> dict[int, str]:
    """Offset from the start of dynamic shared memory -> name: ``{230016: "ab_full[0]", ...}``."""
    return {slot.start: slot.name for slot in smem_slots(budget) if is_barrier(slot.row)}


class RegionWatch(Observer):
    """Collects copies that do not lie inside one slot of one region, and barriers and TMEM beyond the budget.

    ``findings``: one line each; a copy into two regions at once means that the regions overlap or that an offset is
    wrong. A TMA box may be smaller than its slot, never larger.
    """

    def __init__(self, budget: Budget, is_barrier: IsBarrier) -> None:
        self._budget, self._is_barrier = budget, is_barrier
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
        if first is None or self._is_barrier(first.row) or start + size > first.end:
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
        if slot is None or not self._is_barrier(slot.row) or slot.start != start:
            self.findings.append(
                f"an mbarrier at offset {start:#x} is no barrier of the budget ({slot.name if slot else 'no region'})"
            )

    def _slot(self, offset: int) -> Slot | None:
        at = bisect.bisect_right(self._starts, offset) - 1
        return self._slots[at] if at >= 0 and offset < self._slots[at].end else None
