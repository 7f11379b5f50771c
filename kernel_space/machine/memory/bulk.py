"""Plain bulk copies, bulk groups and ``cp.async``. PTX ISA 9.7.9.24-25."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kernel_space.machine.memory.tma import BulkStore, reduced, target_barrier
from kernel_space.machine.memory.undefined import copy_bytes
from kernel_space.machine.units.mbarrier import MBarrier, find
from kernel_space.machine.values.faults import IllegalAccess
from kernel_space.machine.values.lanes import Value, first_lane, lane_list
from kernel_space.machine.values.undefined import where

if TYPE_CHECKING:
    from kernel_space.machine.memory.bulk_groups import BulkOp
    from kernel_space.machine.memory.global_memory import Region
    from kernel_space.machine.memory.smem import Smem
    from kernel_space.machine.run.machine import Cta, Warp
    from kernel_space.machine.values.clocks import Known


class BulkLoad:
    """Bytes to one or several CTAs. ``targets``: (CTA, offset, barrier). ``over``: ``Races.launches_over``."""

    kind = "tma"

    def __init__(
        self,
        source: Smem | Region,
        at: int,
        size: int,
        targets: list[tuple[Cta, int, MBarrier]],
        who: str,
        times: int,
        over: Known | None,
    ) -> None:
        self.source, self.at, self.size = source, at, size
        self.targets, self.who, self.times, self.over = targets, who, times, over

    def run(self) -> None:
        data, bits = self.source.u8[self.at : self.at + self.size], self.source.undefined
        name = getattr(self.source, "name", "SMEM")
        for cta, offset, barrier in self.targets:
            cta.smem.u8[offset : offset + self.size] = data
            if cta.smem.undefined is not None:
                copy_bytes(cta.smem.undefined, offset, self.size, bits, self.at, f"by the {self.who}", name)
            barrier.complete(self.size * self.times, self.who, self.over)


class PlainStore(BulkStore):
    def __init__(
        self, cta: Cta, warp: Warp, operation: BulkOp, to: int, offset: int, size: int, how: str, kind: str
    ) -> None:
        super().__init__(cta, warp, operation)
        self.to, self.offset, self.size, self.how, self.element = to, offset, size, how, kind

    def move(self) -> None:
        machine = self.cta.machine
        machine.global_version += 1
        region = machine.memory.find(self.to, self.to + self.size, "bulk store")
        at = self.to - region.base
        view = region.u8[at : at + self.size]
        data = self.cta.smem.u8[self.offset : self.offset + self.size]
        view[:] = reduced(view, data, self.how, self.element) if self.how else data
        self._bits(region, at)

    def _bits(self, region: Region, at: int) -> None:
        source = self.cta.smem.undefined
        dirty = source is not None and source.any(self.offset, self.offset + self.size)
        if dirty or (region.undefined is not None and not self.how):
            stored, name = where(self.warp, self.site), f"SMEM{self.cta.suffix}"
            copy_bytes(region.bits(), at, self.size, source, self.offset, stored, name)


def _check(size: int, *addresses: int) -> None:
    if size % 16 or any(address % 16 for address in addresses):
        raise IllegalAccess(
            f"a bulk copy needs addresses and a size that are multiples of 16 bytes, got {size} bytes"
        )


def bulk_load(
    w: Warp,
    to: int,
    come: int,
    size: int,
    barrier: int,
    ctas: int | None,
    is_global: bool,
    mask: int,
    site: int,
) -> None:
    """``cp.async.bulk`` into shared memory, from global memory or from this CTA's shared memory."""
    w.site = site
    _check(size, to, come)
    source: Smem | Region
    if is_global:
        region = w.machine.memory.find(come, come + size, "bulk load")
        source, at = region, come - region.base
    else:
        w.cta.smem.check(come & 0xFFFFFF, (come & 0xFFFFFF) + size, 16, "bulk copy")
        source, at = w.cta.smem, come & 0xFFFFFF
    offset = to & 0xFFFFFF
    ranks = [to >> 24] if ctas is None else [rank for rank in range(16) if ctas >> rank & 1]
    targets = []
    for rank in ranks:
        w.cta.peer(rank).smem.check(offset, offset + size, 16, "bulk load")
        targets.append((w.cta.peer(rank), offset, target_barrier(w, rank, barrier, ctas is not None, False)))
    over = None
    if w.races is not None:
        if is_global:
            read = w.races.by_barrier(targets[0][2], site)
            w.races.copied_read(w, region, come - region.base, size, read)
        else:
            w.races.copy_read(w, come & 0xFFFFFF, size, targets[0][2], site)
        w.races.bulk_load(w, size, targets, site)
        over = w.races.launches_over(w)
    load = BulkLoad(source, at, size, targets, f"bulk load of {w.who}", mask.bit_count(), over)
    w.machine.issue(load, w.cta)


def bulk_store(w: Warp, to: int, come: int, size: int, how: str, kind: str, mask: int, site: int) -> None:
    """``cp.async.bulk`` and ``cp.reduce.async.bulk`` from shared to global memory."""
    w.site = site
    _check(size, to, come)
    offset = come & 0xFFFFFF
    w.cta.smem.check(offset, offset + size, 16, "bulk store")
    region = w.machine.memory.find(to, to + size, "bulk store")
    times = mask.bit_count() if how else 1
    operation = w.bulk.open(mask, times)
    if w.races is not None:
        w.races.async_read(w, w.cta, offset, size, operation, site)
        w.races.async_global_write(w, region, to - region.base, size, how, operation, site)
    for _ in range(times):
        w.machine.issue(PlainStore(w.cta, w, operation, to, offset, size, how, kind), w.cta)


def bulk_commit(w: Warp, mask: int) -> None:
    """Close the open bulk group of each lane that executes it."""
    w.bulk.commit(mask)


def bulk_wait(w: Warp, most: int, reads: bool, mask: int, site: int) -> bool:
    """True: a lane has more than ``most`` groups pending, sleep. Reading and writing end together here."""
    w.site = site
    if w.bulk.must_wait(most, mask):
        w.sleep(("bulk", None, most, site))
        w.bulk_waits = True
        return True
    known = w.bulk.waited(most, reads, mask)
    if w.races is not None:
        w.races.bulk_waited(w, known)
    return False


def _distinct(to: Value, come: Value, used: Value, mask: int) -> list[tuple[int, int, int, int]]:
    """(lanes, source, offset, bytes) of the copies. Lanes that bring the same bytes to the same place share one: which
    of them writes last is undefined for an instruction of a warp, and here it is no matter.
    """
    copies: dict[tuple[int, int, int], int] = {}
    for lane in lane_list(mask):
        bit = 1 << lane
        key = first_lane(come, bit), first_lane(to, bit) & 0xFFFFFF, first_lane(used, bit)
        copies[key] = copies.get(key, 0) | bit
    return [(lanes, *key) for key, lanes in copies.items()]


def cp_async(w: Warp, to: Value, come: Value, size: int, used: Value, mask: int, site: int) -> None:
    """The bytes are there at once; that nobody counts on them before the wait is what the race checker sees to."""
    w.site = site
    number = w.copies.open(mask)
    for bit, source, offset, count in _distinct(to, come, used, mask):
        count = min(count, size)
        cta = w.cta
        cta.smem.check(offset, offset + size, size, "cp.async")
        block = np.zeros(size, np.uint8)
        if cta.smem.undefined is not None:
            cta.smem.undefined.u8[offset : offset + size] = 0
        if count:
            region = w.machine.memory.find(source, source + count, "cp.async")
            at = source - region.base
            block[:count] = region.u8[at : at + count]
            if w.races is not None:
                w.races.copied_read(w, region, at, count, w.races.now(w, site), bulk=False)
            if cta.smem.undefined is not None and region.undefined is not None:
                copy_bytes(
                    cta.smem.undefined, offset, count, region.undefined, at, where(w, site), region.name
                )
        if w.races is not None:
            w.races.copy_write(w, cta, offset, size, number, bit, site)
        cta.smem.u8[offset : offset + size] = block


def cp_async_commit(w: Warp, mask: int) -> None:
    w.copies.commit(mask)


def cp_async_wait(w: Warp, most: int, mask: int, site: int) -> None:
    """Until ``most`` groups of each lane are left; -1: all that it has issued, closed or not."""
    w.site = site
    if most < 0:
        w.copies.commit(mask)
    known = w.copies.waited(max(most, 0), mask)
    if w.races is not None:
        w.races.copies_waited(w, known)


def cp_async_arrive(w: Warp, address: int, keeps: bool, mask: int, site: int) -> None:
    """``cp.async.mbarrier.arrive``: all copies are complete, so the lanes arrive now."""
    w.site = site
    barrier = find(w, address)
    if w.races is not None:
        w.races.copies_arrive(w, barrier, w.copies.issued, mask, site)
    if not keeps:
        barrier.pending += mask.bit_count()
    barrier.arrive(mask.bit_count(), w.who)
