"""Plain loads, stores and ``cp.async`` against the same L2 and DRAM as TMA. Names are those of the translator's text.

An access takes the 32-byte sectors that its lanes touch. The accesses of a run of instructions are charged together,
when the run begins: to L1; those that it does not hold to the SM's share of L2 and its port, and, from a cold L2, to
DRAM for what the launch has not touched before, reads and writes alike. L1 holds what plain loads of the CTA brought;
stores, ``cp.async`` and loads that must see what others wrote pass it. A warp waits where it works with what it loads.
TMA waits for these bytes; plain accesses, which come a few at a time, do not wait for what TMA has asked for, but the
launch never ends before DRAM has moved the bytes of both.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from numpy import maximum

from kernel_space.machine.clock.occupancy import SECTOR
from kernel_space.machine.clock.sync import find
from kernel_space.machine.values.lanes import FULL, Value, first_lane, lane_flags

if TYPE_CHECKING:
    from kernel_space.machine.clock.chip import TimedMachine, TimedWarp
    from kernel_space.machine.clock.clock import Times

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
    """Through L1: sectors that it holds, or has asked for, do not pass L2 again."""
    held = w.cta.l1
    sectors = set(sectors_of(where, size, mask))
    missing = sectors.difference(held, w.coming)
    for arrival in {id(held[sector]): held[sector] for sector in sectors.intersection(held)}.values():
        w.found_at = maximum(w.found_at, arrival)
    w.found += len(sectors) - len(missing)
    w.coming |= missing
    _load(w, missing)


def strong_load(w: TimedWarp, where: Value, size: int, mask: int) -> None:
    """Past L1."""
    _load(w, sectors_of(where, size, mask))


def _load(w: TimedWarp, sectors: Collection[int]) -> None:
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
    if kind in ("load", "strong"):
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
    """A run of instructions with plain accesses: its cost, and when its loads will have come."""
    begin = w.t
    w.t = begin + w.costs[number]
    w.issued += w.slots[number]
    w.special += w.specials[number]
    w.visits[number] += 1
    sectors = w.loaded + w.stored + w.copied
    if not sectors + w.found:
        return
    passed = _pass_l1(w, sectors + w.found, begin)
    come = maximum(_come(w, sectors, begin), passed)
    if w.copied:
        w.copies_at = maximum(w.copies_at, come)
    if w.coming:
        _keep(w, come)
    if w.loaded:
        w.loads_at = maximum(w.loads_at, come)
    if w.found:
        w.loads_at = maximum(w.loads_at, maximum(w.found_at, passed + w.clock.l1_load))
    w.found = w.loaded = w.stored = w.copied = w.fresh_loads = w.fresh_stores = w.fresh_copies = 0
    w.found_at = w.machine.zero


def _pass_l1(w: TimedWarp, sectors: int, begin: Times) -> Times:
    """When ``sectors``, asked for at ``begin``, have passed the SM's L1."""
    cta = w.cta
    cta.l1_bytes += sectors * SECTOR
    cta.l1_free = maximum(cta.l1_free, begin) + sectors * SECTOR / w.machine.l1_rate
    return cta.l1_free


def _come(w: TimedWarp, sectors: int, begin: Times) -> Times:
    """When ``sectors`` that L1 does not hold are there, or have been taken."""
    machine, cta = w.machine, w.cta
    if not sectors:
        return begin
    taken = sectors * SECTOR / machine.plain_rate
    cta.plain_bytes += sectors * SECTOR
    cta.plain_free = maximum(cta.plain_free, begin) + taken
    cta.l2_free = cta.l2_free + taken
    cta.fill_free = cta.fill_free + taken
    come = cta.plain_free
    fresh = w.fresh_loads + w.fresh_copies
    if fresh or w.fresh_stores:
        passed = _pass_dram(machine, fresh + w.fresh_stores, begin)
        machine.dram_written += w.fresh_stores
        if fresh:
            come = maximum(come, maximum(passed, begin + machine.dram_extra))
    return come + w.clock.global_load


def _keep(w: TimedWarp, come: Times) -> None:
    """L1 holds what was loaded last, as much as there is room for."""
    held, room = w.cta.l1, w.machine.l1_sectors
    held.update(dict.fromkeys(w.coming, come))
    w.coming = set()
    while len(held) > room:
        del held[next(iter(held))]


def loads_arrived(w: TimedWarp) -> None:
    """The next instruction works with what the warp has loaded."""
    late = maximum(w.t, w.loads_at)
    w.waited("global", float(late[0] - w.t[0]))
    w.t = late


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
        plain_load, strong_load, loads_arrived, plain_store, plain_copy, blind_access, memory, copy_commit, copy_wait,
        cp_async_arrive,
    )
}  # fmt: skip
