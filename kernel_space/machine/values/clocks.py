"""Vector clocks of one cluster.

Slots count things that are ordered by themselves: the epochs of a warp, its reads of shared memory (one slot for each
load that may stay open, ``units/shared_loads.py``), its mbarrier initialisations, its waits on mbarriers, the completed
phases of an mbarrier, the tcgen05 operations of a thread, the bulk stores of a thread (sources read; results written),
the wgmma groups and the cp.async copies of a warp. A clock is an array [4, slots]. Row 0 says what has happened before,
rows 1 and 2 the part of it that the async proxy sees, in shared and in global memory. Only a proxy fence copies generic
accesses from row 0 there, and open reads come there when they are over; what the async proxy did is in all rows.
Row 3 says which tcgen05 operations later ones come behind, done or not: ``tcgen05.fence`` fills it and makes use of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kernel_space.machine.values.faults import Unsupported
from kernel_space.machine.values.lanes import FULL, Value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernel_space.machine.run.machine import Cluster, Warp
    from kernel_space.machine.units.mbarrier import MBarrier

Clock = NDArray[np.int64]
Known = dict[int, Clock]  # by cluster
ROWS = 4
ASYNC_SHARED, ASYNC_GLOBAL, TENSOR = 1, 2, 3
SCOPES = ("cta", "cluster", "gpu")
SPARE_BARRIERS = 32
SPARE_THREADS = (
    64  # of a cluster: threads that issue tcgen05 or bulk stores beside the first of each pipe and warp
)
MOST_UNSYNCED = 8
ALWAYS = np.iinfo(np.int64).max


class Slots:
    """Numbers and names of the slots of one cluster. The last slot is always satisfied: "written by nobody"."""

    def __init__(
        self, cluster: Cluster, ctas: int, warps: int, barriers: int, *, wgmma: bool, copies: bool,
        open_loads: int = 0,
    ) -> None:  # fmt: skip
        self.cluster, self.wgmma, self.copies = cluster, wgmma, copies
        self.capacity = ctas * ((8 + wgmma + copies + open_loads) * warps + 1 + barriers) + SPARE_THREADS + 1
        self.names: list[str] = []
        self.barrier_slots: dict[tuple[int, int], int] = {}
        self.released_phases: dict[int, int] = {}
        self.of_open_reads: set[int] = set()
        self.waits: list[int] = []

    def new(self, name: str) -> int:
        if len(self.names) >= self.capacity - 1:
            raise Unsupported(
                "too many mbarriers, or threads that issue asynchronous operations, for the race checker"
            )
        self.names.append(name)
        return len(self.names) - 1

    def clock(self) -> Clock:
        clock = np.zeros((ROWS, self.capacity), np.int64)
        clock[:, -1] = ALWAYS
        return clock

    def only_waits(self, clock: Clock) -> Clock:
        """Of a clock, which waits have happened before: they order no memory, so any arrival brings them along."""
        found = np.zeros((ROWS, self.capacity), np.int64)
        found[0, self.waits] = clock[0, self.waits]
        return found

    def barrier_slot(self, barrier: MBarrier) -> int:
        """One slot per place in memory; phases go on counting when a barrier is initialised again."""
        key = (barrier.cta.rank, barrier.offset)
        if key not in self.barrier_slots:
            self.barrier_slots[key] = self.new(f"mbarrier {barrier.label}")
        return self.barrier_slots[key]


@dataclasses.dataclass(slots=True)
class View:
    """What ``lanes`` know where others of their warp have acquired more since all met: ``clock`` [1, slots], row 0."""

    lanes: int
    clock: Clock
    foreign: Known

    def part(self, lanes: int) -> View:
        return View(lanes, self.clock.copy(), self.foreign)


MOST_VIEWS = 4  # more are taken together: each then knows what any of them does
_UNCHANGED = contextlib.nullcontext()


class WarpClock:
    """Clock of a warp with its slots, what it has heard of other clusters, and fences still to take effect.

    ``fences``: scope -> what the last fence of at least that scope has released. ``unfenced``: what relaxed reads saw,
    with their scope, for the next fence to acquire. ``unsynced``: [epoch, lanes] of writes since the lanes of the warp
    last waited for each other: what one lane does then says nothing of writes by others. ``arrivals``: lanes -> their
    first arrival on an mbarrier since meeting ``arrivals_met``; ``heard``: those that a wait has come behind.
    ``ordered``: the tcgen05 operations that those of this warp come behind. ``open_slots``: load that may stay open ->
    slot; ``opened``: slot -> its last read. ``views``: of lanes that have not acquired all that is in ``clock``, as of
    meeting ``views_met``; ``acquiring``: the lanes that acquire what comes next.
    """

    __slots__ = (
        "acquiring", "arrivals", "arrivals_met", "clock", "copy_slot", "fences", "foreign", "heard", "init_fence",
        "init_slot", "inits", "load_slot", "loads", "of_bulk", "open_slots", "opened",
        "ordered", "read_slot", "readers", "reads",
        "reads_known", "reads_met", "slot", "slots", "store_slot", "stores", "unfenced", "unsynced",
        "views", "views_met", "wait_slot", "waits", "warp", "wgmma_slot", "who",
    )  # fmt: skip

    def __init__(self, slots: Slots, warp: Warp) -> None:
        self.slots, self.who = slots, warp.who
        self.slot = slots.new(warp.who)
        self.warp = warp
        self.read_slot = slots.new(warp.who)
        self.open_slots: dict[int, int] = {}
        self.opened: dict[int, int] = {}
        self.reads, self.reads_known, self.readers, self.reads_met = 0, 0, 0, -1
        self.init_slot = slots.new(f"mbarrier.init of {warp.who}")
        self.wait_slot = slots.new(f"waits of {warp.who}")
        slots.waits.append(self.wait_slot)
        self.load_slot = slots.new(f"tcgen05.ld of {warp.who}")
        self.store_slot = slots.new(f"tcgen05.st of {warp.who}")
        self.wgmma_slot = slots.new(f"wgmma of {warp.who}") if slots.wgmma else -1
        self.copy_slot = slots.new(f"cp.async of {warp.who}") if slots.copies else -1
        self.of_bulk: dict[int, tuple[int, int]] = {}
        self.loads = self.stores = self.inits = self.init_fence = 0
        self.waits = 1  # that it has begun, which any arrival brings along
        self.clock = slots.clock()
        self.clock[0, self.slot], self.clock[0, self.read_slot], self.clock[0, self.wait_slot] = 1, ALWAYS, 1
        self.foreign: Known = {}
        self.fences: dict[str, tuple[Clock, Known]] = {}
        self.unfenced: dict[Any, tuple[Known, str]] = {}
        self.unsynced: list[list[int]] = []
        self.arrivals: dict[int, int] = {}
        self.arrivals_met, self.heard = -1, 0
        self.ordered: NDArray[np.int64] | None = None
        self.views: list[View] = []
        self.views_met, self.acquiring = -1, FULL

    @property
    def epoch(self) -> int:
        return int(self.clock[0, self.slot])

    def bulk_slots(self, lanes: int) -> tuple[int, int]:
        """(sources read, results written) of the bulk stores that these lanes issue together."""
        found = self.of_bulk.get(lanes)
        if found is None:
            of = f"of {self.who}" if not self.of_bulk else f"of {self.who}, lanes {lanes:#x}"
            found = self.of_bulk[lanes] = (
                self.slots.new(f"bulk reads {of}"),
                self.slots.new(f"bulk writes {of}"),
            )
        return found

    # -- lanes ---------------------------------------------------------------------------------------------------
    def wrote(self, at: Value, lanes: int) -> None:
        """A generic write of some lanes; where all write one word, each of them knows what it holds."""
        if isinstance(at, int) and lanes & (lanes - 1):
            return
        epoch, writes = self.epoch, self.unsynced
        if writes and writes[-1][0] == epoch:
            writes[-1][1] |= lanes
            return
        writes.append([epoch, lanes])
        if len(writes) > MOST_UNSYNCED:
            writes[1][0] = writes[0][0]
            writes[1][1] |= writes.pop(0)[1]

    def synced(self, lanes: int) -> None:
        """These lanes have waited for each other."""
        for write in self.unsynced:
            write[1] &= ~lanes
        self.unsynced = [write for write in self.unsynced if write[1]]

    def known(self, lanes: int, after: int = 0) -> int:
        """The last epoch of the warp all of whose writes these lanes know of. ``after``: those up to then are known."""
        for epoch, writers in self.unsynced:
            if epoch > after and writers & ~lanes:
                return epoch - 1
        return self.epoch

    def acquires(self, lanes: int) -> None:
        """These lanes are about to acquire something. The others of the warp know of it when they have met them."""
        if self.views and self.views_met != self.warp.meetings:
            self.views = []
        self.acquiring = lanes
        others = self.warp.alive & ~lanes
        if not others:
            return
        views, self.views_met = [], self.warp.meetings
        for view in self.views:
            others &= ~view.lanes
            if view.lanes & lanes and view.lanes & ~lanes:
                views.append(view.part(view.lanes & ~lanes))
                view.lanes &= lanes
            views.append(view)
        if others:
            views.append(View(others, self.clock[:1].copy(), self.foreign))
        while len(views) > MOST_VIEWS:
            last = views.pop()
            views[-1] = View(views[-1].lanes | last.lanes, np.maximum(views[-1].clock, last.clock),
                             merged(views[-1].foreign, last.foreign))  # fmt: skip
        self.views = views

    def known_to(self, lanes: int) -> contextlib.AbstractContextManager[None]:
        """The clock as these lanes have it, while a generic access of theirs is checked."""
        if not self.views or self.views_met != self.warp.meetings:
            return _UNCHANGED
        lanes &= self.warp.alive
        views = [view for view in self.views if view.lanes & lanes]
        return self._seen_as(views) if views else _UNCHANGED

    @contextlib.contextmanager
    def _seen_as(self, views: list[View]) -> Iterator[None]:
        """What is in all of these views."""
        clock, foreign = self.clock, self.foreign
        self.clock, self.foreign = views[0].clock.copy(), views[0].foreign
        for view in views[1:]:
            np.minimum(self.clock, view.clock, out=self.clock)
            self.foreign = common(self.foreign, view.foreign)
        self.clock[0, self.slot] = clock[0, self.slot]
        try:
            yield
        finally:
            self.clock, self.foreign = clock, foreign

    # -- orders --------------------------------------------------------------------------------------------------
    def waited(self) -> int:
        """The number of a wait on an mbarrier that is over, or of an arrival."""
        self.waits += 1
        self.clock[0, self.wait_slot] = self.waits
        return self.waits

    def arrived(self, lanes: int) -> None:
        if self.arrivals_met != self.warp.meetings:
            self.arrivals.clear()
            self.arrivals_met, self.heard = self.warp.meetings, 0
        number = self.waited()
        self.arrivals.setdefault(lanes, number)

    def hear_lanes(self, released: Clock | None) -> None:
        """After a wait that takes ``released``: all lanes know what those did that have arrived before, on any barrier.

        Where that is every lane, they have met.
        """
        if self.arrivals_met != self.warp.meetings or released is None:
            return
        last = released[0, self.wait_slot]
        for mask, number in self.arrivals.items():
            self.heard |= mask if number <= last else 0
        if self.heard | ~self.warp.alive & FULL == FULL:
            self.warp.meetings += 1

    def heard_of(self) -> int:
        """Lanes whose accesses since the last meeting all others know of."""
        return self.heard if self.arrivals_met == self.warp.meetings else 0

    def release(self, lanes: int = FULL) -> Clock:
        """A copy for somebody else; what this warp does from now on is not in it."""
        copy = self.clock.copy()
        if self.unsynced and lanes != FULL:
            copy[0, self.slot] = self.known(lanes)
        self.clock[0, self.slot] += 1
        copy[0, self.read_slot] = reads = self._reads_before(lanes)
        for slot, over in self._reads_over():
            copy[0, slot], copy[ASYNC_SHARED, slot] = reads, min(reads, over)
        return copy

    def open_slot(self, site: int, number: int) -> int:
        """The slot of a load that may stay open; this is its last read."""
        slot = self.open_slots.get(site)
        if slot is None:
            slot = self.open_slots[site] = self.slots.new(self.who)
            self.slots.of_open_reads.add(slot)
            self.clock[0, slot] = ALWAYS
        self.opened[slot] = number
        return slot

    def _reads_over(self) -> Iterator[tuple[int, int]]:
        """(slot of a load, its last read that is over)."""
        if self.opened:
            opened = frozenset().union(*self.warp.open_loads.values())
            for slot, number in self.opened.items():
                yield slot, number - 1 if number in opened else number

    def reading(self, lanes: int, *, stays_open: bool) -> int:
        """The number of a read of shared memory: reads without a meeting of the lanes between them have one.

        One that may not be over for a while has its own.
        """
        if self.reads_met != self.warp.meetings:
            self.reads_known, self.readers, self.reads_met = self.reads, 0, self.warp.meetings
            self.reads += 1
        elif stays_open:
            self.reads += 1
        self.readers |= lanes
        return self.reads

    def _reads_before(self, lanes: int) -> int:
        """The last read that these lanes, or those they have met, have behind them."""
        if self.reads_met == self.warp.meetings and self.readers & ~lanes:
            return self.reads_known
        self.reads_met = -1  # the next read is another one
        return self.reads

    def join(self, other: Clock) -> None:
        np.maximum(self.clock, other, out=self.clock)
        for view in self.views:
            if not view.lanes & ~self.acquiring:
                np.maximum(view.clock, other[:1], out=view.clock)
        if self.unsynced:
            heard = other[0, self.slot]  # lanes of this warp arrived where others of them waited
            self.unsynced = [write for write in self.unsynced if write[0] > heard]

    def seen_by_copies(self) -> NDArray[np.int64]:
        """What an asynchronous write of shared memory that this warp issues comes behind."""
        seen = self.clock[ASYNC_SHARED]
        for slot, over in self._reads_over():
            seen[slot] = over
        return seen

    def raise_slot(self, slot: int, value: int) -> None:
        """An asynchronous operation is known to have completed: both proxies see it."""
        column = self.clock[:, slot]
        np.maximum(column, value, out=column)
        for view in self.views:
            view.clock[0, slot] = max(view.clock[0, slot], value)

    def know(self, slot: int, value: int) -> None:
        """A generic operation is known to have completed."""
        self.clock[0, slot] = max(self.clock[0, slot], value)
        for view in self.views:
            view.clock[0, slot] = max(view.clock[0, slot], value)

    def proxy_fence(self, rows: tuple[int, ...], lanes: int) -> None:
        """What has happened before is there for the async proxy; what these lanes write from now on is not."""
        seen = self.clock[0].copy()
        if self.warp.open_loads and ASYNC_SHARED in rows:
            self.warp.fence_loads(self._reads_before(lanes))
        for row in rows:
            seen[self.slot] = self.known(lanes, int(self.clock[row, self.slot]))
            np.maximum(self.clock[row], seen, out=self.clock[row])
        self.clock[0, self.slot] += 1

    def memory_fence(self, scope: str, lanes: int) -> None:
        """Releases for the relaxed accesses behind it."""
        released = (self.release(lanes), dict(self.foreign))
        for narrower in SCOPES[: SCOPES.index(scope) + 1]:
            self.fences[narrower] = released

    def before_thread_sync(self, issued: dict[int, int]) -> None:
        """``tcgen05.fence``: what this thread has issued, slot -> number, goes along with what it releases."""
        row = self.clock[TENSOR]
        np.maximum(row, self.clock[0], out=row)
        for slot, number in {**issued, self.load_slot: self.loads, self.store_slot: self.stores}.items():
            row[slot] = max(row[slot], number)

    def after_thread_sync(self) -> None:
        """What this thread issues from now on comes behind all that it has acquired."""
        self.ordered = np.maximum(self.clock[TENSOR], self.clock[0])

    def seen_by_tensor(self) -> NDArray[np.int64]:
        return self.clock[0] if self.ordered is None else np.maximum(self.clock[0], self.ordered)

    def hear(self, foreign: Known) -> None:
        """Clocks of other clusters, which came along with a synchronisation."""
        self.foreign = merged(self.foreign, foreign)
        for view in self.views:
            if not view.lanes & ~self.acquiring:
                view.foreign = merged(view.foreign, foreign)


class SyncObject:
    """What arrivals have brought together; ``released`` is what a waiter of the last completed phase may take."""

    __slots__ = ("foreign", "gathered", "released", "released_foreign")

    def __init__(self) -> None:
        self.gathered: Clock | None = None
        self.released: Clock | None = None
        self.foreign: Known = {}
        self.released_foreign: Known = {}

    def gather(self, clock: Clock, foreign: Known) -> None:
        if self.gathered is None:
            self.gathered = clock.copy()
        else:
            np.maximum(self.gathered, clock, out=self.gathered)
        if foreign:
            self.foreign = merged(self.foreign, foreign)

    def gather_waits(self, slots: Slots, clock: Clock) -> None:
        """What any arrival brings along."""
        if self.gathered is None:
            self.gathered = slots.only_waits(clock)
        else:
            row, waits = self.gathered[0], slots.waits
            row[waits] = np.maximum(row[waits], clock[0, waits])

    def complete(self) -> None:
        if self.gathered is not None:
            self.released = self.gathered.copy()
            self.released_foreign = self.foreign

    def give(self, to: WarpClock) -> None:
        if self.released is not None:
            to.join(self.released)
            if self.released_foreign:
                to.hear(self.released_foreign)


def merged(a: Known, b: Known) -> Known:
    """Clocks by cluster number; what either side knows."""
    result = dict(a)
    for number, clock in b.items():
        own = result.get(number)
        if own is not clock:
            result[number] = clock if own is None else np.maximum(own, clock)
    return result


def common(a: Known, b: Known) -> Known:
    """Clocks by cluster number; what both sides know."""
    return {number: np.minimum(clock, b[number]) for number, clock in a.items() if number in b}
