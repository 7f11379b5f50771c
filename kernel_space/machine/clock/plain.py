"""Plain loads, stores and ``cp.async`` against the same L2 and DRAM as TMA. Names are those of the translator's text.

An access takes the 32-byte sectors that its lanes touch. The accesses of a run of instructions are charged together,
when the run begins: to the SM's share of L2 and its port, and, from a cold L2, to DRAM for what the launch has not
touched before, reads and writes alike. TMA waits for these bytes; plain accesses, which come a few at a time, do not
wait for what TMA has asked for, but the launch never ends before DRAM has moved the bytes of both.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from numpy import maximum

from kernel_space.machine.clock.sync import find
from kernel_space.machine.values.lanes import FULL, Value, first_lane, lane_flags

if TYPE_CHECKING:
    from kernel_space.machine.clock.chip import TimedMachine, TimedWarp
    from kernel_space.machine.clock.clock import Times

SECTOR: Final = 32
_STEP: Final = 32  # bits of an address below those that tell one unknown tensor from another


class Touched:
    """What a launch has touched of global memory: first touches come from DRAM.

    What one cluster touches first, each of ``clusters`` touches somewhere else at the same moment, until a whole
    tensor has passed. ``tensors``: address -> bytes. What a launch writes it finds in L2 when it reads.
    """

    def __init__(self, tensors: Mapping[int, int], clusters: int) -> None:
        self.clusters = clusters
        self.begins = sorted(tensors)
        self.ends = [begin + tensors[begin] for begin in self.begins]
        self.left = [-(-tensors[begin] // SECTOR) * SECTOR for begin in self.begins]
        self.sectors: set[int] = set()
        self.written: set[int] = set()

    def first(self, sectors: Collection[int], *, writes: bool) -> int:
        """Bytes that pass DRAM because of ``sectors``, of the whole chip. All of one tensor."""
        fresh = set(sectors) - self.sectors
        if not fresh:
            return 0
        address = min(fresh) * SECTOR
        number = bisect.bisect_right(self.begins, address + SECTOR - 1) - 1
        known = number >= 0 and address < self.ends[number]
        tensor = number if known else -1 - (address >> _STEP)
        if writes:
            self.written.add(tensor)
        elif tensor in self.written:
            return 0
        self.sectors |= fresh
        size = len(fresh) * SECTOR * self.clusters
        if known:
            size = min(size, self.left[number])
            self.left[number] -= size
        return size


def plain_load(w: TimedWarp, where: Value, size: int, mask: int) -> None:
    sectors = sectors_of(where, size, mask)
    w.loaded += len(sectors)
    if w.machine.cold:
        w.fresh_loads += w.machine.touched.first(sectors, writes=False)


def plain_store(w: TimedWarp, where: Value, size: int, mask: int) -> None:
    sectors = sectors_of(where, size, mask)
    w.stored += len(sectors)
    if w.machine.cold:
        w.fresh_stores += w.machine.touched.first(sectors, writes=True)


def plain_copy(w: TimedWarp, where: Value, size: int, mask: int) -> None:
    sectors = sectors_of(where, size, mask)
    w.copied += len(sectors)
    if w.machine.cold:
        w.fresh_copies += w.machine.touched.first(sectors, writes=False)


def blind_access(w: TimedWarp, kind: str, size: int, mask: int) -> None:
    """Nobody knows where: lanes side by side, never touched before."""
    sectors = -(-mask.bit_count() * size // SECTOR)
    fresh = sectors * SECTOR * w.machine.clusters_active if w.machine.cold else 0
    if kind == "load":
        w.loaded += sectors
        w.fresh_loads += fresh
    elif kind == "store":
        w.stored += sectors
        w.fresh_stores += fresh
    else:
        w.copied += sectors
        w.fresh_copies += fresh


def sectors_of(where: Value, size: int, mask: int) -> Collection[int]:
    """Numbers of the sectors that the lanes of ``mask`` touch with ``size`` bytes each, aligned to their size."""
    if not mask:
        return ()
    if isinstance(where, int):
        return sectors_between(where, size)
    lanes = where if mask == FULL else where[lane_flags(mask)]
    return set((lanes // SECTOR).tolist())


def sectors_between(address: int, size: int) -> range:
    """Numbers of the sectors of ``size`` bytes that stand together."""
    return range(address // SECTOR, (address + size - 1) // SECTOR + 1)


def memory(w: TimedWarp, number: int) -> None:
    """A run of instructions with plain accesses: its cost, and no earlier than its loads have come."""
    begin = w.t
    w.t = begin + w.costs[number]
    w.issued += w.slots[number]
    machine, cta, clock = w.machine, w.cta, w.clock
    sectors = w.loaded + w.stored + w.copied
    if not sectors:
        return
    taken = sectors * SECTOR / machine.plain_rate
    cta.plain_bytes += sectors * SECTOR
    cta.plain_free = maximum(cta.plain_free, begin) + taken
    cta.l2_free = cta.l2_free + taken
    cta.fill_free = cta.fill_free + taken
    come = cta.plain_free
    fresh = w.fresh_loads + w.fresh_copies
    if fresh or w.fresh_stores:
        passed = _pass_dram(machine, fresh + w.fresh_stores, begin)
        if fresh:
            come = maximum(come, maximum(passed, begin + machine.dram_extra))
    come = come + clock.global_load
    if w.copied:
        w.copies_at = maximum(w.copies_at, come)
    if w.loaded:
        late = maximum(w.t, come)
        w.waited("global", float(late[0] - w.t[0]))
        w.t = late
    w.loaded = w.stored = w.copied = w.fresh_loads = w.fresh_stores = w.fresh_copies = 0


def _pass_dram(machine: TimedMachine, size: int, begin: Times) -> Times:
    """When ``size`` bytes, asked for at ``begin``, have passed DRAM behind other plain accesses."""
    taken = size / machine.clock.dram_rate
    machine.dram_bytes += size
    machine.dram_free = machine.dram_free + taken
    machine.plain_dram = maximum(machine.plain_dram, begin) + taken
    return machine.plain_dram


def copy_commit(w: TimedWarp) -> None:
    w.copy_groups.append(w.copies_at)


def copy_wait(w: TimedWarp, most: int) -> None:
    """``most`` < 0: for every copy, whether or not it is in a group."""
    if most < 0:
        w.copy_groups.append(w.copies_at)
    while len(w.copy_groups) > max(most, 0):
        late = maximum(w.t, w.copy_groups.pop(0))
        w.waited("global", float(late[0] - w.t[0]))
        w.t = late


def cp_async_arrive(w: TimedWarp, where: Value, keeps: bool, mask: int, site: int) -> None:
    """The barrier counts the lanes when their copies have come; without ``keeps`` they count themselves in first."""
    barrier = find(w, first_lane(where, mask))[1]
    barrier.arrive(mask.bit_count() if keeps else 0, maximum(w.t, w.copies_at), "global")


NAMES: dict[str, Any] = {
    function.__name__: function
    for function in (
        plain_load, plain_store, plain_copy, blind_access, memory, copy_commit, copy_wait, cp_async_arrive,
    )
}  # fmt: skip
