"""Named barriers of a CTA, the barrier of a cluster, and pauses. PTX ISA 9.7.13 "bar", "barrier.cluster"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernel_space.machine.values.faults import ProtocolError

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Warp

LATER = -3


class NamedBarrier:
    """``arrived`` threads of ``expected``; complete when they are equal. ``whole``: used without a count, so that it
    waits for all threads of the CTA that have not exited. ``deposits``: of ``bar.red``, how many threads said true, and
    how many said anything.
    """

    __slots__ = ("arrived", "clock", "deposits", "expected", "members", "number", "waiters", "whole")

    def __init__(self, number: int) -> None:
        self.number = number
        self.arrived = self.expected = 0
        self.waiters: list[Warp] = []
        self.members: list[str] = []
        self.whole = False
        self.clock: Any = None
        self.deposits = (0, 0)

    def __str__(self) -> str:
        return f"bar {self.number}: {self.arrived} of {self.expected} threads arrived ({', '.join(self.members)})"


def _named(w: Warp, number: int) -> NamedBarrier:
    barrier = w.cta.named.get(number)
    if barrier is None:
        barrier = w.cta.named[number] = NamedBarrier(number)
    return barrier


def bar_deposit(w: Warp, number: int, predicate: int, mask: int) -> None:
    """The lanes' part in a ``bar.red``; the arrival follows."""
    barrier = _named(w, number)
    true, asked = barrier.deposits
    barrier.deposits = true + (predicate & mask).bit_count(), asked + mask.bit_count()


def _arrive(w: Warp, number: int, count: int, site: int) -> tuple[NamedBarrier, bool]:
    w.site = site
    barrier = _named(w, number)
    expected = count or w.cta.running
    if expected % 32:
        raise ProtocolError(f"bar {number} is given {expected} threads, which is not a multiple of 32")
    if barrier.arrived and barrier.expected != expected:
        raise ProtocolError(
            f"bar {number} is used with {barrier.expected} and with {expected} threads at once"
        )
    barrier.expected, barrier.whole = expected, not count
    barrier.arrived += 32
    barrier.members.append(w.who)
    if w.races is not None:
        w.races.named_arrive(w, barrier)
    if barrier.arrived > expected:
        raise ProtocolError(f"bar {number}: {barrier.arrived} threads arrived, {expected} were expected")
    return barrier, barrier.arrived == expected


def _release(w: Warp, barrier: NamedBarrier, *, waits: bool) -> None:
    """Wake everybody who waits; ``waits``: the last to arrive is one of them."""
    waiters, barrier.waiters = barrier.waiters, []
    barrier.arrived, barrier.members = 0, []
    if w.races is not None:
        w.races.named_release([*waiters, w] if waits else waiters, barrier)
    deposits, barrier.deposits = barrier.deposits, (0, 0)
    for warp in (*waiters, w):
        warp.deposited = deposits
    for warp in waiters:
        warp.wake()


def warp_exits(w: Warp) -> None:
    """Barriers that wait for all threads of the CTA do not wait for those of this warp any more. PTX ISA "exit": they
    are released if the exiting threads were the only ones that had not arrived. It orders nothing that those did.
    """
    w.cta.running -= 32
    for barrier in w.cta.named.values():
        if barrier.whole and barrier.arrived:
            barrier.expected -= 32
            if barrier.arrived == barrier.expected:
                _release(w, barrier, waits=False)


def bar_arrive(w: Warp, number: int, count: int, site: int) -> None:
    barrier, full = _arrive(w, number, count, site)
    if full:
        _release(w, barrier, waits=False)


def bar_sync(w: Warp, number: int, count: int, following: int, site: int) -> int:
    """The next block, or ``LATER`` when the warp has to wait for others."""
    barrier, full = _arrive(w, number, count, site)
    if full:
        _release(w, barrier, waits=True)
        return following
    barrier.waiters.append(w)
    w.pc = following
    w.sleep(("bar", barrier, 0, site))
    return LATER


def cluster_arrive(w: Warp, release: bool, mask: int, site: int) -> None:
    """Counted in warps: every thread of every CTA of the cluster has to arrive."""
    w.site = site
    cluster = w.cta.cluster
    if w.cluster_open:  # whether the others have come by now is luck
        raise ProtocolError("a warp arrives twice at the cluster barrier without waiting")
    w.cluster_phase, w.cluster_open = cluster.phase + 1, True
    cluster.arrived += 1
    if w.races is not None:
        w.races.cluster_arrive(w, cluster, release)
    cluster.settle()


def cluster_wait(w: Warp, site: int) -> bool:
    """True: sleep."""
    w.site = site
    cluster = w.cta.cluster
    if cluster.phase < w.cluster_phase:
        cluster.waiters.append(w)
        w.sleep(("cluster", cluster, 0, site))
        return True
    w.cluster_open = False
    if w.races is not None:
        w.races.cluster_observe(w, cluster)
    return False


def pause(w: Warp, following: int) -> int:
    """``nanosleep``: let the others run."""
    w.pc = following
    w.resting = True
    return LATER


def trap(w: Warp) -> None:
    raise ProtocolError("trap: the program ended itself")
