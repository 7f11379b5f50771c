"""Shared memory accesses as the race checker sees them, of threads and of the async proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernel_space.machine.races.global_memory import ASYNC, GENERIC, GlobalRaces, words_of
from kernel_space.machine.races.shadow import Access, Cells, Conflict

if TYPE_CHECKING:
    from kernel_space.machine.memory.tma import TmaTensor
    from kernel_space.machine.run.machine import Cta, Warp
    from kernel_space.machine.units.mbarrier import MBarrier


class MemoryRaces(GlobalRaces):
    """Checks happen when an operation is issued, with the clock of the warp that issues it."""

    # -- shared memory -------------------------------------------------------------------------------------------
    def shared_read(self, w: Warp, cta: Cta, offset: Any, size: int, site: int) -> None:
        cells = words_of(offset, size)
        self._read(w, cta, cells, Access(w.clock.slot, w.clock.epoch, site), GENERIC, "ld.shared")

    def shared_write(self, w: Warp, cta: Cta, offset: Any, size: int, site: int) -> None:
        cells = words_of(offset, size)
        self._write(w, cta, cells, Access(w.clock.slot, w.clock.epoch, site), GENERIC, "st.shared")

    def shared_atomic(self, w: Warp, cta: Cta, offset: int, size: int, order: str, site: int) -> None:
        """Atomics do not race with each other; they may synchronise."""
        cell = (id(cta), offset)
        self.sync_load(w, cell, order)
        cells = words_of(offset, size)
        cta.shadow.note_write(cells, Access(w.clock.slot, w.clock.epoch, site))
        self.sync_store(w, cell, order)

    def async_read(self, w: Warp, cta: Cta, offset: int, size: int, site: int) -> None:
        """A bulk store reads its source: done when the bulk group is waited for."""
        access = Access(w.clock.read_slot, w.bulk_current + 1, site)
        self._read(w, cta, words_of(offset, size), access, ASYNC, "bulk store")

    def wgmma_read(self, w: Warp, cta: Cta, offset: Any, size: int, site: int) -> None:
        """An operand of a ``wgmma``: read until its group is waited for."""
        access = Access(w.clock.wgmma_slot, w.wgmma.number, site)
        self._read(w, cta, words_of(offset, size), access, ASYNC, "wgmma")

    def wgmma_waited(self, w: Warp, number: int) -> None:
        """Groups up to ``number`` are complete."""
        w.clock.raise_slot(w.clock.wgmma_slot, number)

    def copy_read(self, w: Warp, offset: int, size: int, barrier: MBarrier, site: int) -> None:
        """A copy from shared to shared memory reads its source: done when the destination's barrier completes."""
        access = Access(barrier.slot, barrier.base + barrier.phase + 1, site)
        self._read(w, w.cta, words_of(offset, size), access, ASYNC, "bulk copy")

    def bulk_load(self, w: Warp, size: int, targets: list[tuple[Cta, int, MBarrier]], site: int) -> None:
        for cta, offset, barrier in targets:
            self._load(w, cta, offset, size, barrier, site)

    def tma_load(
        self,
        w: Warp,
        tensor: TmaTensor,
        start: tuple[int, ...],
        targets: list[tuple[Cta, int, MBarrier]],
        site: int,
    ) -> None:
        for cta, offset, barrier in targets:
            self._load(w, cta, offset, tensor.footprint(), barrier, site)
        self._box(w, tensor, start, None, site)

    def _load(self, w: Warp, cta: Cta, offset: int, size: int, barrier: MBarrier, site: int) -> None:
        """The data is there when the phase that is current now completes."""
        self.check_made(w, barrier, site)
        access = Access(barrier.slot, barrier.base + barrier.phase + 1, site)
        self._write(w, cta, words_of(offset, size), access, ASYNC, "TMA load")

    def async_store(self, w: Warp, cta: Cta, offset: int, size: int, barrier: MBarrier, site: int) -> None:
        """``st.async``: a generic write that is there when the barrier's current phase completes."""
        self.check_made(w, barrier, site)
        access = Access(barrier.slot, barrier.base + barrier.phase + 1, site)
        self._write(w, cta, words_of(offset, size), access, GENERIC, "st.async")

    def tma_store(
        self, w: Warp, tensor: TmaTensor, start: tuple[int, ...], offset: int, how: str, site: int
    ) -> None:
        self.async_read(w, w.cta, offset, tensor.footprint(), site)
        self._box(w, tensor, start, Access(w.clock.write_slot, w.bulk_current + 1, site), site, bool(how))

    def bulk_waited(self, w: Warp, limit: int, reads: bool) -> None:
        w.clock.raise_slot(w.clock.read_slot, limit)
        if not reads:
            w.clock.raise_slot(w.clock.write_slot, limit)

    def _read(self, w: Warp, cta: Cta, cells: Cells, access: Access, proxy: int, what: str) -> None:
        shadow, clock = cta.shadow, w.clock.clock
        conflict = shadow.writers_before(cells, clock[proxy])
        if conflict is not None:
            self._shared_conflict(w, cta, conflict, access, proxy, f"{what} reads", "RAW")
        shadow.note_read(cells, access)

    def _write(self, w: Warp, cta: Cta, cells: Cells, access: Access, proxy: int, what: str) -> None:
        shadow, clock = cta.shadow, w.clock.clock
        conflict = shadow.writers_before(cells, clock[proxy])
        if conflict is not None:
            self._shared_conflict(w, cta, conflict, access, proxy, f"{what} overwrites", "WAW")
        conflict = shadow.readers_before(cells, clock[GENERIC], w.clock.slot)
        if conflict is not None:
            self._shared_conflict(w, cta, conflict, access, GENERIC, f"{what} overwrites", "WAR")
        shadow.note_write(cells, access)

    def _shared_conflict(
        self, w: Warp, cta: Cta, conflict: Conflict, access: Access, proxy: int, what: str, kind: str
    ) -> None:
        other = cta.cluster.slots.names[conflict.slot]
        fenced = proxy == ASYNC and w.clock.clock[GENERIC, conflict.slot] >= self._value(cta, conflict)
        reason = (
            "no fence.proxy.async lies between them"
            if fenced and conflict.kind == "write"
            else f"that {conflict.kind} is not known to be complete"
        )
        self.report(
            (kind, conflict.site, access.site),
            f"{kind} on SMEM {self._smem(cta, conflict.cell)}: {what} what {other} {_past(conflict.kind)}; {reason}",
            access.site, w.who, conflict.site, other,
        )  # fmt: skip

    @staticmethod
    def _value(cta: Cta, conflict: Conflict) -> int:
        return int(cta.shadow.write_value[conflict.cell])

    @staticmethod
    def _smem(cta: Cta, word: int) -> str:
        return f"offset {word * 4:#x}{cta.suffix}"


def _past(kind: str) -> str:
    return "wrote" if kind == "write" else "reads"
