"""Barriers with times: when a phase completes is the latest of its arrivals and of its bytes.

Functions here carry the names that the translator's text calls; ``w`` is a ``TimedWarp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy import maximum

from kernel_space.machine.units.barriers import LATER
from kernel_space.machine.values.faults import IllegalAccess, ProtocolError
from kernel_space.machine.values.lanes import Value, first_lane, lane_list

if TYPE_CHECKING:
    from kernel_space.machine.clock.chip import TimedCta, TimedWarp
    from kernel_space.machine.clock.clock import Times

IDLE_POLLS = 10_000


class TimedBarrier:
    """An mbarrier. ``latest``: latest arrival of the current phase; ``done``: when the last one completed.

    ``cause``: what the current phase waited for in the end: ``tma <parameter>``, ``tensor`` or ``arrive``.
    """

    __slots__ = (
        "cause",
        "count",
        "done",
        "done_cause",
        "latest",
        "pending",
        "phase",
        "polls",
        "tx",
        "waiters",
    )

    def __init__(self, count: int, start: Times) -> None:
        self.count = self.pending = count
        self.phase = self.tx = self.polls = 0
        self.latest = self.done = start
        self.cause = self.done_cause = "arrive"
        self.waiters: list[TimedWarp] = []

    def arrive(self, amount: int, when: Times, cause: str) -> None:
        self.pending -= amount
        if self.pending < 0:
            raise ProtocolError("more arrivals on an mbarrier than its count")
        self._seen(when, cause)

    def complete(self, tx_bytes: int, when: Times, cause: str) -> None:
        self.tx -= tx_bytes
        self._seen(when, cause)

    def _seen(self, when: Times, cause: str) -> None:
        if when[0] >= self.latest[0]:
            self.cause = cause
        self.latest = maximum(self.latest, when)
        if self.pending == 0 and self.tx == 0:
            self.phase += 1
            self.pending = self.count
            self.done, self.done_cause = self.latest, self.cause
            self.polls = 0
            waiters, self.waiters = self.waiters, []
            for warp in waiters:
                warp.wake()


def find(w: TimedWarp, address: int) -> tuple[TimedCta, TimedBarrier]:
    cta = w.cta.peer(address >> 24)
    barrier = cta.mbarriers.get(address & 0xFFFFFF)
    if barrier is None:
        raise IllegalAccess(f"no mbarrier was initialised at shared offset {address & 0xFFFFFF:#x}")
    return cta, barrier


def mbarrier_init(w: TimedWarp, address: int, count: int, site: int) -> None:
    w.cta.mbarriers[address & 0xFFFFFF] = TimedBarrier(count, w.machine.zero)
    w.machine.targets.clear()


def mbarrier_inval(w: TimedWarp, address: int, site: int) -> None:
    del w.cta.mbarriers[address & 0xFFFFFF]
    w.machine.targets.clear()


def mbarrier_arrive(
    w: TimedWarp, where: Value, amount: Value, expects: bool, drop: bool, release: str, mask: int, site: int
) -> int:
    if isinstance(where, int) and isinstance(amount, int):
        return _arrive(w, where, amount, expects, mask.bit_count())
    phase = 0
    for lane in lane_list(mask):
        phase = _arrive(w, first_lane(where, 1 << lane), first_lane(amount, 1 << lane), expects, 1)
    return phase


def _arrive(w: TimedWarp, where: int, amount: int, expects: bool, lanes: int) -> int:
    cta, barrier = find(w, where)
    phase = barrier.phase
    when = w.t if cta is w.cta else w.t + w.clock.remote_arrive
    if expects:
        barrier.tx += amount * lanes
        amount = 1
    barrier.arrive(amount * lanes, when, "arrive")
    return phase


def mbarrier_expect_tx(w: TimedWarp, where: int, tx_bytes: int, mask: int, site: int) -> None:
    find(w, where)[1].tx += tx_bytes * mask.bit_count()


def mbarrier_complete_tx(w: TimedWarp, where: int, tx_bytes: int, mask: int, site: int) -> None:
    find(w, where)[1].complete(tx_bytes * mask.bit_count(), w.t, "arrive")


def st_async(
    w: TimedWarp, to: Value, size: int, values: tuple, where: Value, mask: int, site: int
) -> None:  # fmt: skip
    """Each lane's bytes complete on the barrier that it names, mostly one of another CTA."""
    for lane in lane_list(mask):
        cta, barrier = find(w, first_lane(where, 1 << lane))
        when = w.t if cta is w.cta else w.t + w.clock.remote_arrive
        barrier.complete(size * len(values), when, "arrive")


def mbarrier_wait(
    w: TimedWarp, where: int, phase: int, parity: bool, acquire: bool, mask: int, site: int
) -> bool:
    """True: sleep until the phase completes. Otherwise the clock moves to its completion."""
    barrier = find(w, where)[1]
    done = (barrier.phase & 1) != (phase & 1) if parity else barrier.phase > phase
    if not done:
        barrier.waiters.append(w)
        w.waits = True
        return True
    ready = w.t + w.clock.spin
    if barrier.phase:
        late = maximum(ready, barrier.done + w.clock.wake)
        w.waited(barrier.done_cause, float(late[0] - ready[0]))
        ready = late
    w.t = ready
    return False


def mbarrier_look(
    w: TimedWarp, where: int, phase: int, parity: bool, acquire: bool, mask: int, site: int
) -> int:
    """One look. It finds nothing: the wait that must follow finds out when the phase completes."""
    barrier = find(w, where)[1]
    w.t = w.t + w.clock.spin
    barrier.polls += 1
    if barrier.polls > IDLE_POLLS:
        raise ProtocolError("a loop polls an mbarrier by single looks, which a clocked run cannot follow")
    return 0


class TimedNamed:
    __slots__ = ("arrived", "latest", "waiters", "whole")

    def __init__(self, start: Times) -> None:
        self.arrived, self.latest, self.whole = 0, start, False
        self.waiters: list[TimedWarp] = []


def _named(w: TimedWarp, number: int, count: int) -> bool:
    """Count one warp in; True when the barrier is complete."""
    barrier = w.cta.named.get(number)
    if barrier is None:
        barrier = w.cta.named[number] = TimedNamed(w.machine.zero)
    barrier.arrived += 32
    barrier.latest, barrier.whole = maximum(barrier.latest, w.t), not count
    if barrier.arrived < (count or w.cta.running):
        return False
    _complete(w, barrier)
    return True


def _complete(w: TimedWarp, barrier: TimedNamed) -> None:
    ready = barrier.latest + w.clock.named_barrier
    waiters, barrier.waiters = barrier.waiters, []
    barrier.arrived, barrier.latest = 0, w.machine.zero
    for warp in waiters:
        warp.t = ready
        warp.wake()
    w.cta.released = ready


def warp_exits(w: TimedWarp) -> None:
    """As the machine's: who waits for all threads of the CTA does not wait for those of this warp."""
    w.cta.running -= 32
    for barrier in w.cta.named.values():
        if barrier.whole and 0 < barrier.arrived >= w.cta.running:
            barrier.latest = maximum(barrier.latest, w.t)
            _complete(w, barrier)


def bar_arrive(w: TimedWarp, number: int, count: int, site: int) -> None:
    _named(w, number, count)


def bar_sync(w: TimedWarp, number: int, count: int, following: int, site: int) -> int:
    if _named(w, number, count):
        w.t = w.cta.released
        return following
    w.cta.named[number].waiters.append(w)
    w.pc = following
    w.waits = True
    return LATER


def cluster_arrive(w: TimedWarp, release: bool, mask: int, site: int) -> None:
    cluster = w.cta.cluster
    w.cluster_phase = cluster.phase + 1
    cluster.arrived += 1
    cluster.latest = maximum(cluster.latest, w.t)
    cluster.settle()


def cluster_wait(w: TimedWarp, site: int) -> bool:
    cluster = w.cta.cluster
    if cluster.phase < w.cluster_phase:
        cluster.waiters.append(w)
        w.waits = True
        return True
    w.t = maximum(w.t, cluster.released)
    return False


def pause(w: TimedWarp, following: int) -> int:
    raise ProtocolError("a loop that sleeps and polls has no time that a clocked run could tell")


def load_shared(w: TimedWarp, where: Value, size: int, count: int, mask: int, site: int) -> list[int]:
    """Words that threads hand to each other; what nobody stored reads as 0, as the first TMEM address does."""
    if not isinstance(where, int):
        return [0] * count
    return [w.cta.words.get((where & 0xFFFFFF) + size * number, 0) for number in range(count)]


def store_shared(w: TimedWarp, where: Value, size: int, values: tuple, mask: int, site: int) -> None:
    if not isinstance(where, int):
        where = first_lane(where, mask)
    for number, value in enumerate(values):
        w.cta.words[(where & 0xFFFFFF) + size * number] = first_lane(value, mask)


def aligned(w: TimedWarp, mask: int, site: int) -> None:
    """Who executes it together is the checking run's business, as are the fences below."""


def warp_synced(w: TimedWarp, mask: int) -> None:
    """See ``aligned``."""


NAMES: dict[str, Any] = {
    function.__name__: function
    for function in (
        mbarrier_init, mbarrier_inval, mbarrier_arrive, mbarrier_expect_tx, mbarrier_complete_tx, st_async,
        mbarrier_wait, mbarrier_look, bar_arrive, bar_sync, cluster_arrive, cluster_wait, pause, load_shared,
        store_shared, aligned, warp_synced,
    )
}  # fmt: skip
