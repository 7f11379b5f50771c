"""Shared memory accesses as the race checker sees them, of threads and of the async proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kernel_space.machine.races.global_memory import GENERIC, places_of, words_of
from kernel_space.machine.races.lanes import LaneRaces
from kernel_space.machine.races.shadow import Access, Cells, Conflict
from kernel_space.machine.units.shared_loads import load_opened
from kernel_space.machine.values.clocks import ASYNC_SHARED
from kernel_space.machine.values.lanes import FULL

if TYPE_CHECKING:
    from kernel_space.machine.memory.bulk_groups import BulkOp
    from kernel_space.machine.memory.tma import TmaTensor
    from kernel_space.machine.run.machine import Cta, Warp
    from kernel_space.machine.units.mbarrier import MBarrier


class MemoryRaces(LaneRaces):
    """Checks happen when an operation is issued, with the clock of the warp that issues it."""

    # -- shared memory -------------------------------------------------------------------------------------------
    def shared_read(self, w: Warp, cta: Cta, offset: Any, size: int, site: int, mask: int = FULL) -> None:
        """A word that all lanes read at once is any lane's."""
        stays_open = site in self.program.open_loads
        number = w.clock.reading(0 if isinstance(offset, int) else mask, stays_open=stays_open)
        slot = w.clock.read_slot
        if stays_open:
            slot = w.clock.open_slot(site, number)
            load_opened(w, site, number)
        access = Access(slot, number, site)
        if cta is not w.cta:  # over when its value is there: any arrival behind it will do
            self._touch(w, cta, w.clock.wait_slot, w.clock.waited(), site, "reads its shared memory")
        with w.clock.known_to(mask):
            self._read(w, cta, words_of(offset, size), access, GENERIC, "ld.shared")

    def shared_write(self, w: Warp, cta: Cta, offset: Any, size: int, mask: int, site: int) -> None:
        cells = words_of(offset, size)
        w.clock.wrote(offset, mask)
        access = Access(w.clock.slot, w.clock.epoch, site)
        if cta is not w.cta:
            self._touch(w, cta, access.slot, access.value, site, "writes its shared memory")
        with w.clock.known_to(mask):
            self._write(w, cta, cells, access, GENERIC, "st.shared")

    def shared_strong(
        self, w: Warp, cta: Cta, offset: Any, size: int, order: str, scope: str, mask: int, site: int, how: str
    ) -> None:  # fmt: skip
        """Strong accesses ("load", "store", "atomic") do not race with each other; they may synchronise."""
        if cta is not w.cta:
            self._touch(w, cta, w.clock.slot, w.clock.epoch, site, "changes its shared memory")
        for place in places_of(offset):
            cell = (id(cta), place)
            if how != "store":
                self.sync_load(w, cell, order, scope, mask)
            if how != "load":
                cells = words_of(place, size)
                cta.shadow.note_write(cells, Access(w.clock.slot, w.clock.epoch, site))
                cta.shadow.lane_written[cells] = 0
                self.sync_store(w, cell, order, scope, mask)

    def async_read(self, w: Warp, cta: Cta, offset: int, size: int, operation: BulkOp, site: int) -> None:
        """A bulk store reads its source: done when its threads have waited for their groups."""
        self.lanes_sent(w, cta, offset, size, operation.lanes, site)
        access = Access(w.clock.bulk_slots(operation.lanes)[0], operation.number, site)
        self._read(w, cta, words_of(offset, size), access, ASYNC_SHARED, "bulk store")

    def wgmma_read(self, w: Warp, cta: Cta, offset: Any, size: int, site: int) -> None:
        """An operand of a ``wgmma``: read until its group is waited for."""
        access = Access(w.clock.wgmma_slot, w.wgmma.number, site)
        self._read(w, cta, words_of(offset, size), access, ASYNC_SHARED, "wgmma")

    def wgmma_waited(self, w: Warp, number: int) -> None:
        """Groups up to ``number`` are complete."""
        w.clock.raise_slot(w.clock.wgmma_slot, number)

    def copy_write(
        self, w: Warp, cta: Cta, offset: int, size: int, number: int, lanes: int, site: int
    ) -> None:
        """``cp.async``: there when its threads have waited for the group."""
        w.clock.wrote(offset, lanes)
        self.lanes_wrote(w, cta, offset, size, lanes, site)
        self.lanes_copied(w, cta, offset, size, number, lanes)
        access = Access(w.clock.copy_slot, number, site)
        self._write(w, cta, words_of(offset, size), access, GENERIC, "cp.async")

    def copies_waited(self, w: Warp, number: int) -> None:
        """Copies up to ``number`` are there, for the generic proxy."""
        w.clock.know(w.clock.copy_slot, number)
        self.lanes_waited(w, number)

    def copies_arrive(self, w: Warp, barrier: MBarrier, number: int, mask: int, site: int) -> None:
        """An arrival once copies up to ``number`` are there."""
        self.arrive(w, barrier, "cta", mask, site)
        there = w.clock.slots.clock()
        there[GENERIC, w.clock.copy_slot] = number
        barrier.clock.gather(there, {})

    def copy_read(self, w: Warp, offset: int, size: int, barrier: MBarrier, site: int) -> None:
        """A copy from shared to shared memory reads its source: done when the destination's barrier completes."""
        access = self.by_barrier(barrier, site)
        self._read(w, w.cta, words_of(offset, size), access, ASYNC_SHARED, "bulk copy")

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
        self._box_read(w, tensor, start, self.by_barrier(targets[0][2], site))

    @staticmethod
    def by_barrier(barrier: MBarrier, site: int) -> Access:
        """Over when the phase that is current now completes."""
        return Access(barrier.slot, barrier.base + barrier.phase + 1, site)

    def _load(self, w: Warp, cta: Cta, offset: int, size: int, barrier: MBarrier, site: int) -> None:
        """The data is there when the phase that is current now completes."""
        self.check_made(w, barrier, site)
        self.copy_issued(w, barrier)
        access = self.by_barrier(barrier, site)
        self._write(w, cta, words_of(offset, size), access, ASYNC_SHARED, "TMA load")

    def async_store(self, w: Warp, cta: Cta, offset: int, size: int, barrier: MBarrier, site: int) -> None:
        """``st.async``: a generic write that is there when the barrier's current phase completes."""
        self.check_made(w, barrier, site)
        self.check_begun(w, cta, site)
        self.copy_issued(w, barrier)
        access = self.by_barrier(barrier, site)
        self._write(w, cta, words_of(offset, size), access, GENERIC, "st.async")

    def tma_store(
        self, w: Warp, tensor: TmaTensor, start: tuple[int, ...], offset: int, how: str, operation: BulkOp, site: int
    ) -> None:  # fmt: skip
        self.async_read(w, w.cta, offset, tensor.footprint(), operation, site)
        access = Access(w.clock.bulk_slots(operation.lanes)[1], operation.number, site)
        self._box_write(w, tensor, start, access, site, bool(how))

    def bulk_waited(self, w: Warp, known: list[tuple[int, int, bool]]) -> None:
        """``known``: (lanes, number, written too) of stores that are over."""
        for lanes, number, written in known:
            for slot in w.clock.bulk_slots(lanes)[: 1 + written]:
                w.clock.raise_slot(slot, number)

    def _touch(self, w: Warp, cta: Cta, slot: int, value: int, site: int, what: str) -> None:
        """A generic access to another CTA, which must have begun and must not have ended."""
        self.check_begun(w, cta, site)
        self.visit(cta, slot, value, site, w.who, what)

    def check_begun(self, w: Warp, cta: Cta, site: int) -> None:
        """Something that a warp of the CTA has done must be known: an arrival at the barrier of the cluster, say."""
        waits = [warp.clock.wait_slot for warp in cta.warps]
        if cta is not w.cta and not np.count_nonzero(w.clock.clock[0, waits]):
            self.report(
                ("begun", site), f"{w.who} accesses shared memory of CTA {cta.rank}, which may not have begun: nothing "
                "that its warps have done comes before, such as a barrier of the cluster", site, w.who, -1, "",
            )  # fmt: skip

    def visit(self, cta: Cta, slot: int, value: int, site: int, who: str, what: str) -> None:
        """An access to another CTA, which must not end before it."""
        raise NotImplementedError

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
        elif proxy == ASYNC_SHARED and w.clock.slots.of_open_reads:
            self._check_open_reads(w, cta, cells, access, what)
        shadow.note_write(cells, access)

    def _check_open_reads(self, w: Warp, cta: Cta, cells: Cells, access: Access, what: str) -> None:
        """Loads that a copy comes behind in program order only: they may not have fetched anything yet."""
        seen, reads = w.clock.seen_by_copies(), w.clock.slots.of_open_reads
        conflict = cta.shadow.readers_before(cells, seen, w.clock.slot, reads)
        if conflict is not None:
            self._shared_conflict(w, cta, conflict, access, ASYNC_SHARED, f"{what} overwrites", "WAR")

    def _shared_conflict(
        self, w: Warp, cta: Cta, conflict: Conflict, access: Access, proxy: int, what: str, kind: str
    ) -> None:
        other = cta.cluster.slots.names[conflict.slot]
        reason = f"that {conflict.kind} is not known to be complete"
        if proxy == ASYNC_SHARED and kind == "WAR":
            reason = "no register of it has been used, and no fence.proxy.async lies between them"
        elif proxy == ASYNC_SHARED and w.clock.clock[GENERIC, conflict.slot] >= self._value(cta, conflict):
            reason = "no fence.proxy.async lies between them"
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
