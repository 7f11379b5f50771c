"""Vector clocks of one cluster.

Slots count things that are ordered by themselves: the epochs of a warp, the completed phases of an mbarrier, the
operations of a tensor pipe, the bulk groups of a warp (sources read; results written), its wgmma groups. A clock is an
array [2, slots]: row 0 says what has happened before, row 1 the part of it that the async proxy sees. Only a proxy
fence copies generic accesses from row 0 to row 1; what the async proxy did itself is in both rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kernel_space.machine.values.faults import Unsupported

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Cluster, Warp
    from kernel_space.machine.units.mbarrier import MBarrier

Clock = NDArray[np.int64]
SPARE_BARRIERS = 32
ALWAYS = np.iinfo(np.int64).max


class Slots:
    """Numbers and names of the slots of one cluster. The last slot is always satisfied: "written by nobody"."""

    def __init__(self, cluster: Cluster, ctas: int, warps: int, barriers: int, *, wgmma: bool) -> None:
        self.cluster, self.wgmma = cluster, wgmma
        self.capacity = ctas * ((5 if wgmma else 4) * warps + 1 + barriers) + 1
        self.names: list[str] = []
        self.barrier_slots: dict[tuple[int, int], int] = {}
        self.released_phases: dict[int, int] = {}

    def new(self, name: str) -> int:
        if len(self.names) >= self.capacity - 1:
            raise Unsupported("too many mbarriers for the race checker")
        self.names.append(name)
        return len(self.names) - 1

    def clock(self) -> Clock:
        clock = np.zeros((2, self.capacity), np.int64)
        clock[:, -1] = ALWAYS
        return clock

    def barrier_slot(self, barrier: MBarrier) -> int:
        """One slot per place in memory; phases go on counting when a barrier is initialised again."""
        key = (barrier.cta.rank, barrier.offset)
        if key not in self.barrier_slots:
            self.barrier_slots[key] = self.new(f"mbarrier {barrier.label}")
        return self.barrier_slots[key]


class WarpClock:
    """Clock of a warp with its slots, what it has heard of other clusters, and fences still to take effect."""

    __slots__ = (
        "clock",
        "fence",
        "foreign",
        "initialised",
        "load_slot",
        "loads",
        "read_slot",
        "slot",
        "unfenced",
        "wgmma_slot",
        "write_slot",
    )

    def __init__(self, slots: Slots, warp: Warp) -> None:
        self.slot = slots.new(warp.who)
        self.read_slot = slots.new(f"bulk reads of {warp.who}")
        self.write_slot = slots.new(f"bulk writes of {warp.who}")
        self.load_slot = slots.new(f"tcgen05.ld of {warp.who}")
        self.wgmma_slot = slots.new(f"wgmma of {warp.who}") if slots.wgmma else -1
        self.loads = 0
        self.clock = slots.clock()
        self.clock[0, self.slot] = 1
        self.foreign: dict[int, Clock] = {}
        self.fence: tuple[Clock, dict[int, Clock]] | None = None
        self.unfenced: list[Any] = []
        self.initialised = False

    @property
    def epoch(self) -> int:
        return int(self.clock[0, self.slot])

    def release(self) -> Clock:
        """A copy for somebody else; what this warp does from now on is not in it."""
        copy = self.clock.copy()
        self.clock[0, self.slot] += 1
        return copy

    def join(self, other: Clock) -> None:
        np.maximum(self.clock, other, out=self.clock)

    def raise_slot(self, slot: int, value: int) -> None:
        """An asynchronous operation is known to have completed: both proxies see it."""
        column = self.clock[:, slot]
        np.maximum(column, value, out=column)

    def proxy_fence(self) -> None:
        np.maximum(self.clock[1], self.clock[0], out=self.clock[1])

    def hear(self, foreign: dict[int, Clock]) -> None:
        """Clocks of other clusters, which came along with a synchronisation."""
        self.foreign = merged(self.foreign, foreign)


class SyncObject:
    """What arrivals have brought together; ``released`` is what a waiter of the last completed phase may take."""

    __slots__ = ("foreign", "gathered", "released", "released_foreign")

    def __init__(self) -> None:
        self.gathered: Clock | None = None
        self.released: Clock | None = None
        self.foreign: dict[int, Clock] = {}
        self.released_foreign: dict[int, Clock] = {}

    def gather(self, clock: Clock, foreign: dict[int, Clock]) -> None:
        if self.gathered is None:
            self.gathered = clock.copy()
        else:
            np.maximum(self.gathered, clock, out=self.gathered)
        if foreign:
            self.foreign = merged(self.foreign, foreign)

    def complete(self) -> None:
        if self.gathered is not None:
            self.released = self.gathered.copy()
            self.released_foreign = self.foreign

    def give(self, to: WarpClock) -> None:
        if self.released is not None:
            to.join(self.released)
            if self.released_foreign:
                to.hear(self.released_foreign)


def merged(a: dict[int, Clock], b: dict[int, Clock]) -> dict[int, Clock]:
    """Clocks by cluster number; what either side knows."""
    result = dict(a)
    for number, clock in b.items():
        own = result.get(number)
        result[number] = clock if own is None else np.maximum(own, clock)
    return result
