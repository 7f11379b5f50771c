"""mbarrier objects. PTX ISA 9.7.13.15: pending count, phase, transaction count.

``wait(parity)`` is true iff ``(phase & 1) != parity``, phase counted from 0 (measured on Hopper: a fresh barrier
satisfies parity 1 and not parity 0). ``tx`` may go negative while arrivals are missing: bytes may come before they
are expected. Once all arrivals have come it may not. There the card has no one outcome (measured on Hopper): the
count falls in pieces, and if it passes through zero the phase completes before its data is there, else never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernel_space.machine.values.faults import IllegalAccess, ProtocolError
from kernel_space.machine.values.lanes import FULL, Value, first_lane, lane_list

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Cta, Warp
    from kernel_space.machine.values.clocks import Known

TX_LIMIT = (1 << 20) - 1


class MBarrier:
    """State in words: ``count`` arrivals per phase, ``pending`` still missing, ``tx`` bytes still missing."""

    __slots__ = ("arrivals", "base", "clock", "count", "cta", "last", "made", "name", "offset", "pending", "phase",
                 "seen", "slot", "total", "tx", "waiters")  # fmt: skip

    def __init__(self, cta: Cta, offset: int, count: int, name: str) -> None:
        self.cta, self.offset, self.name = cta, offset, name
        self.count = self.pending = count
        self.phase = self.tx = 0
        self.waiters: list[Warp] = []
        self.last = "nobody"
        self.arrivals = 0
        self.total = 0  # bytes ever completed
        self.clock: Any = None  # these five belong to the race checker
        self.seen: dict[Warp, tuple[int, int]] = {}
        self.slot = -1
        self.base = 0
        self.made = (-1, 0, 0)

    def arrive(self, amount: int, who: str) -> None:
        self.last = who
        self.arrivals += amount
        self.pending -= amount
        if self.pending < 0:
            raise ProtocolError(
                f"{who} arrives on {self.label} in phase {self.phase}, but all {self.count} arrivals of that phase "
                f"have already come: {-self.pending} too many"
            )
        self._settle()

    def expect(self, tx_bytes: int) -> None:
        self._add_tx(tx_bytes)

    def complete(self, tx_bytes: int, who: str, over: Known | None = None) -> None:
        """``over``: earlier launches that whoever issued the copy knew to be over."""
        if over:
            self.cta.machine.races.copy_arrives(self, over)
        self.last = who
        self.total += tx_bytes
        self._add_tx(-tx_bytes)
        self._settle()

    def _add_tx(self, tx_bytes: int) -> None:
        self.tx += tx_bytes
        if abs(self.tx) > TX_LIMIT:
            raise ProtocolError(
                f"the transaction count of {self.label} leaves its range of 2^20 - 1: {self.tx} bytes"
            )

    def _settle(self) -> None:
        if self.pending == 0 and self.tx < 0:
            raise ProtocolError(
                f"{self.label} received {-self.tx} bytes more than it expects in phase {self.phase}, after all "
                f"{self.count} arrivals (last: {self.last}): the phase may complete before its data is there, or never"
            )
        if self.pending == 0 and self.tx == 0:
            self.phase += 1
            self.pending = self.count
            if self.cta.machine.races is not None:
                self.cta.machine.races.phase_done(self)
            if self.waiters:
                waiters, self.waiters = self.waiters, []
                for warp in waiters:
                    warp.wake()

    def done(self, value: int, parity: bool) -> bool:
        """Has the phase of this parity (or of this token) completed?"""
        return (self.phase & 1) != (value & 1) if parity else self.phase > value & FULL

    @property
    def label(self) -> str:
        rank = f" of CTA {self.cta.rank}" if len(self.cta.cluster.ctas) > 1 else ""
        return f"{self.name}{rank}"

    def __str__(self) -> str:
        return f"{self.label}: phase {self.phase}, pending {self.pending}/{self.count}, tx bytes outstanding {self.tx}"


def find(w: Warp, address: int) -> MBarrier:
    """The barrier at a shared address, in whichever CTA of the cluster it names."""
    cta = w.cta.peer(address >> 24)
    barrier = cta.mbarriers.get(address & 0xFFFFFF)
    if barrier is None:
        raise IllegalAccess(
            f"no mbarrier was initialised at shared offset {address & 0xFFFFFF:#x} of CTA {cta.rank}"
        )
    return barrier


def mbarrier_init(w: Warp, address: int, count: int, site: int) -> None:
    w.site = site
    cta, offset = w.cta.peer(address >> 24), address & 0xFFFFFF
    cta.smem.check(offset, offset + 8, 8, "mbarrier.init")
    if not 1 <= count <= TX_LIMIT:
        raise ProtocolError(f"an mbarrier count must be between 1 and 2^20 - 1, got {count}")
    old = cta.mbarriers.get(offset)
    if old is not None and old.waiters:
        raise ProtocolError(f"{old.label} is initialised again while warps wait on it")
    barrier = MBarrier(cta, offset, count, cta.machine.barrier_name(offset))
    cta.mbarriers[offset] = barrier
    if w.races is not None:
        w.races.mbarrier_init(w, barrier, site)


def mbarrier_inval(w: Warp, address: int, site: int) -> None:
    w.site = site
    barrier = find(w, address)
    if barrier.waiters:
        raise ProtocolError(f"{barrier.label} is invalidated while warps wait on it")
    del barrier.cta.mbarriers[barrier.offset]


def mbarrier_arrive(
    w: Warp, address: Value, amount: Value, expects: bool, drop: bool, release: str, mask: int, site: int
) -> Value:
    """One arrival per active lane; with ``expects`` the amount is bytes and each lane arrives once.

    ``release``: the scope, "" for a relaxed arrival. Returns the state before the arrival,
    the token that ``test_wait`` and ``pending_count`` take: the phase in the
    lower half, the pending arrivals in the upper half.
    """
    w.site = site
    if isinstance(address, int) and isinstance(amount, int):
        return _arrive(w, find(w, address), amount, expects, drop, release, mask, site)
    token = 0
    for lane in lane_list(mask):
        barrier = find(w, first_lane(address, 1 << lane))
        token = _arrive(w, barrier, first_lane(amount, 1 << lane), expects, drop, release, 1 << lane, site)
    return token


def _arrive(
    w: Warp, barrier: MBarrier, amount: int, expects: bool, drop: bool, release: str, mask: int, site: int
) -> int:
    token = barrier.phase & FULL | barrier.pending << 32
    if w.races is not None:
        w.races.arrive(w, barrier, release, mask, site)
    lanes = mask.bit_count()
    if expects:
        barrier.expect(amount * lanes)
        amount = 1
    if drop:
        barrier.count -= amount * lanes
    barrier.arrive(amount * lanes, w.who)
    return token


def mbarrier_expect_tx(w: Warp, address: int, tx_bytes: int, mask: int, site: int) -> None:
    w.site = site
    find(w, address).expect(tx_bytes * mask.bit_count())


def mbarrier_complete_tx(w: Warp, address: int, tx_bytes: int, mask: int, site: int) -> None:
    w.site = site
    barrier = find(w, address)
    if w.races is not None:
        w.races.arrive(w, barrier, "cluster", mask, site)
    barrier.complete(tx_bytes * mask.bit_count(), w.who)


def mbarrier_look(
    w: Warp, address: int, value: int, parity: bool, acquire: bool, mask: int, site: int
) -> int:
    """One look at the barrier: lane mask of "the phase has completed"."""
    w.site = site
    barrier = find(w, address)
    _check_parity(barrier, value, parity)
    if not barrier.done(value, parity):
        w.looked_in_vain = True
        return 0
    if w.races is not None:
        w.races.observe(w, barrier, acquire, mask, site)
    return FULL


def _check_parity(barrier: MBarrier, value: int, parity: bool) -> None:
    if parity and value > 1:
        raise ProtocolError(
            f"a wait on {barrier.label} names the parity {value}; a phase's is 0 or 1 (PTX ISA, mbarrier.test_wait)"
        )


def mbarrier_wait(
    w: Warp, address: int, value: int, parity: bool, acquire: bool, mask: int, site: int
) -> bool:
    """True: the warp has to sleep until the phase completes."""
    w.site = site
    barrier = find(w, address)
    _check_parity(barrier, value, parity)
    if barrier.done(value, parity):
        if w.races is not None:
            w.races.observe(w, barrier, acquire, mask, site)
        return False
    barrier.waiters.append(w)
    w.sleep(("mbarrier", barrier, value, site))
    return True
