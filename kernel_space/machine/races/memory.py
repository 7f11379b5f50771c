"""Shared and global memory accesses as the race checker sees them, of threads and of the async proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kernel_space.machine.races.shadow import Access, Cells, Conflict, GlobalShadow
from kernel_space.machine.races.sync import SyncRaces
from kernel_space.machine.values.lanes import ndarray

if TYPE_CHECKING:
    from kernel_space.machine.memory.global_memory import Region
    from kernel_space.machine.memory.tma import TmaTensor
    from kernel_space.machine.run.machine import Cta, Warp
    from kernel_space.machine.units.mbarrier import MBarrier

GENERIC, ASYNC = 0, 1


def words_of(offset: int | NDArray[np.int64], size: int) -> Cells:
    """4-byte words that accesses of ``size`` bytes touch."""
    if type(offset) is not ndarray:
        return slice(offset >> 2, (offset + size + 3) >> 2)
    if size <= 4:
        return offset >> 2
    return ((offset[:, None] + np.arange(0, size, 4)[None, :]) >> 2).reshape(-1)


class MemoryRaces(SyncRaces):
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

    # -- global memory -------------------------------------------------------------------------------------------
    def global_read(self, w: Warp, region: Region, at: Any, size: int, order: str, site: int) -> None:
        if order not in ("weak",):
            if type(at) is not ndarray:
                self.sync_load(w, (region.base, at), order)
            return
        shadow = self._global(region, make=False)
        if shadow is None:
            return
        cells = words_of(at, size)
        self._global_check(w, region, shadow, "writer", cells, GENERIC, site, "ld.global reads", "RAW")
        shadow.note(shadow.reader, cells, w.cta.cluster.number, Access(w.clock.slot, w.clock.epoch, site))

    def global_write(self, w: Warp, region: Region, at: Any, size: int, order: str, site: int) -> None:
        if order not in ("weak",):
            if type(at) is not ndarray:
                self.sync_store(w, (region.base, at), order)
            return
        access = Access(w.clock.slot, w.clock.epoch, site)
        self._global_write(w, region, words_of(at, size), access, GENERIC, "st.global")

    def global_atomic(self, w: Warp, region: Region, at: int, size: int, order: str, site: int) -> None:
        self.sync_load(w, (region.base, at), order)
        self.sync_store(w, (region.base, at), order)

    def async_global_write(self, w: Warp, region: Region, at: int, size: int, how: str, site: int) -> None:
        if not how:
            access = Access(w.clock.write_slot, w.bulk_current + 1, site)
            self._global_write(w, region, words_of(at, size), access, ASYNC, "bulk store")

    def _box(
        self,
        w: Warp,
        tensor: TmaTensor,
        start: tuple[int, ...],
        writes: Access | None,
        site: int,
        reduces: bool = False,
    ) -> None:
        """The part of a TMA box that lies inside its tensor, as words of a region."""
        located = tensor.region_words(w.machine, start, stores=writes is not None)
        if located is None or reduces:
            return
        region, cells = located
        if writes is not None:
            return self._global_write(w, region, cells, writes, ASYNC, "TMA store")
        shadow = self._global(region, make=False)
        if shadow is not None:
            self._global_check(w, region, shadow, "writer", cells, ASYNC, site, "TMA load reads", "RAW")

    def _global_write(
        self, w: Warp, region: Region, cells: Cells, access: Access, proxy: int, what: str
    ) -> None:
        shadow = self._global(region, make=True)
        assert shadow is not None
        self._global_check(
            w, region, shadow, "writer", cells, proxy, access.site, f"{what} overwrites", "WAW"
        )
        self._global_check(
            w, region, shadow, "reader", cells, GENERIC, access.site, f"{what} overwrites", "WAR"
        )
        shadow.note(shadow.writer, cells, w.cta.cluster.number, access)

    def _global(self, region: Region, *, make: bool) -> GlobalShadow | None:
        shadows = self.__dict__.setdefault("shadows", {})
        found = shadows.get(region.base)
        if found is None and make:
            found = shadows[region.base] = GlobalShadow(region.end - region.base)
        return found

    def _global_check(
        self, w: Warp, region: Region, shadow: GlobalShadow, which: str, cells: Cells, proxy: int, site: int, what: str,
        kind: str,
    ) -> None:  # fmt: skip
        clock = w.clock
        found = shadow.conflict(
            getattr(shadow, which), cells, w.cta.cluster.number, clock.clock, proxy, clock.foreign
        )
        if found is None:
            return
        at, cluster, slot, other_site = found
        word = cells.start + at if isinstance(cells, slice) else int(cells.reshape(-1)[at])
        other = self.clusters[cluster].names[slot]
        where = f"byte {word * 4 - (region.start - region.base)} of {region.name}"
        past = "wrote" if which == "writer" else "read"
        self.report(
            (kind, other_site, site),
            f"{kind} on global memory, {where}: {what} what {other} {past}, and nothing orders the two",
            site, w.who, other_site, other,
        )  # fmt: skip


def _past(kind: str) -> str:
    return "wrote" if kind == "write" else "reads"
