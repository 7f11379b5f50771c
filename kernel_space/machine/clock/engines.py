"""TMA, tensor pipe, tensor memory and bulk stores with times. Names are those of the translator's text.

A TMA or bulk load passes three servers in order: the CTA's share of L2, DRAM for what no cluster has read before (cold
runs), and the port into each receiving SM; each takes requests in the order of their issue and none forgets what it
owes. What stores write for the first time passes DRAM too: that holds up no load, but the launch ends no earlier.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

from numpy import maximum

from kernel_space.machine.clock.plain import sectors_between
from kernel_space.machine.clock.sync import TimedBarrier, find
from kernel_space.machine.values.address_windows import PARAM_WINDOW
from kernel_space.machine.values.faults import IllegalAccess, Unsupported

if TYPE_CHECKING:
    from kernel_space.launch.tensor_map import TensorMap
    from kernel_space.machine.clock.chip import TimedCta, TimedWarp
    from kernel_space.machine.clock.clock import Times


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimedMap:
    """A TMA descriptor. ``rows``: longest side of the box but the contiguous one; ``tensor_bytes``: of all of it."""

    index: int
    name: str
    box_bytes: int
    rows: int
    tensor_bytes: int

    @functools.cached_property
    def cause(self) -> str:
        return f"tma {self.name}"


def timed_map(index: int, tensor: TensorMap, name: str) -> TimedMap:
    elements = math.prod(tensor.dims)
    return TimedMap(
        index=index,
        name=name,
        box_bytes=tensor.box_bytes,
        rows=max(tensor.box[1:], default=1),
        tensor_bytes=elements * tensor.element_type.bits // 8,
    )


def _map(w: TimedWarp, address: int) -> TimedMap:
    found = w.machine.maps.get(address - PARAM_WINDOW)
    if found is None:
        raise IllegalAccess("a TMA instruction names no descriptor among the kernel's parameters")
    return found


# -- loads -----------------------------------------------------------------------------------------------------
def tma_load(
    w: TimedWarp, to: int, map_address: int, coords: tuple[int, ...], barrier: int, ctas: int | None, pair: bool,
    mask: int, site: int,
) -> None:  # fmt: skip
    info = _map(w, map_address)
    key = (w.cta.rank, barrier, ctas, pair)
    targets = w.machine.targets.get(key)
    if targets is None:
        targets = w.machine.targets[key] = _targets(w, barrier, ctas, pair)
    for _ in range(mask.bit_count()):
        _load(w, info, coords, targets)


def _targets(w: TimedWarp, barrier: int, ctas: int | None, pair: bool) -> list[tuple[TimedCta, TimedBarrier]]:
    """The CTAs that receive a load, each with the barrier that counts its bytes."""
    ranks = [w.cta.rank] if ctas is None else [rank for rank in range(16) if ctas >> rank & 1]
    return [(w.cta.peer(rank), _target(w, rank, barrier, ctas is not None, pair)) for rank in ranks]


def _target(w: TimedWarp, rank: int, barrier: int, multicast: bool, pair: bool) -> TimedBarrier:
    """As ``tma.target_barrier``: whose barrier counts the bytes that arrive in the CTA of ``rank``."""
    own = barrier >> 24
    if pair:
        own = (rank & ~1) | (own & 1)
    elif multicast:
        own = rank
    return find(w, own << 24 | barrier & 0xFFFFFF)[1]


def _load(
    w: TimedWarp, info: TimedMap, coords: tuple[int, ...], targets: list[tuple[TimedCta, TimedBarrier]]
) -> None:
    machine, clock, cta = w.machine, w.clock, w.cta
    issue = maximum(w.t, cta.descriptors_at)
    latency = clock.tma_latency
    if machine.cold:
        latency = _through_dram(w, info, coords, issue)
    if len(targets) > 1:
        latency = latency + clock.multicast_wait
    begin = maximum(cta.l2_free, issue)
    cta.l2_free = begin + machine.l2_cycles[info.index]
    first, last = begin + latency, cta.l2_free + latency
    cost = machine.fill_cycles[info.index]
    cause = info.cause
    for target, barrier in targets:
        done = maximum(maximum(target.fill_free, first) + cost, last)
        # Warps run from wait to wait, so a neighbour's requests are seen before earlier ones of the CTA itself: what
        # the neighbour sends costs this port its bytes, but does not hold up what arrives before.
        target.fill_free = done if target is cta else target.fill_free + cost
        target.filled += info.box_bytes
        barrier.complete(info.box_bytes, done, cause)
        if machine.record is not None and target is targets[0][0]:
            machine.record.append((f"CTA {cta.rank} TMA", info.name, float(issue[0]), float(done[0])))


def _through_dram(w: TimedWarp, info: TimedMap, coords: tuple[int, ...], issue: Times) -> Times:
    """Latency of a load from a cold L2.

    What a cluster reads for the first time, the other clusters read at the same moment, each its own box, until the
    whole tensor is in L2: every byte passes DRAM once.
    """
    machine = w.machine
    key = (info.index, coords)
    if key in machine.seen:
        return machine.clock.tma_latency
    machine.seen.add(key)
    return _latency(w, _unread(w, info), issue)


def _unread(w: TimedWarp, info: TimedMap) -> int:
    """Bytes that pass DRAM for one more box of every cluster."""
    machine = w.machine
    fresh = min(machine.clusters_active * info.box_bytes, machine.unread[info.index])
    machine.unread[info.index] -= fresh
    return fresh


def _latency(w: TimedWarp, fresh: int, issue: Times) -> Times:
    """Of a load for which ``fresh`` bytes of the chip pass DRAM."""
    machine, clock = w.machine, w.clock
    if fresh <= 0:
        return clock.tma_latency
    machine.dram_bytes += fresh
    machine.dram_free = maximum(machine.dram_free, issue) + fresh / clock.dram_rate
    return maximum(clock.tma_latency_cold, machine.dram_free - issue + clock.tma_latency)


def tma_prefetch(w: TimedWarp, map_address: int, coords: tuple[int, ...]) -> None:
    """Into L2: the load that follows finds its bytes there, if DRAM has been fast enough."""
    if w.machine.cold:
        _through_dram(w, _map(w, map_address), coords, w.t)


def bulk_load(
    w: TimedWarp,
    to: int,
    come: int,
    size: int,
    barrier: int,
    ctas: int | None,
    is_global: bool,
    mask: int,
    site: int,
) -> None:
    """As a TMA load of one box; from another CTA's shared memory it passes the port alone."""
    machine, cta = w.machine, w.cta
    begin, latency = w.t, w.clock.tma_latency
    last = begin
    if is_global:
        if machine.cold:
            fresh = machine.touched.first(sectors_between(come, size), writes=False)
            latency = _latency(w, fresh, begin)
        begin = maximum(cta.l2_free, begin)
        last = cta.l2_free = begin + size / machine.l2_rate
    cost = size / machine.fill_narrow
    for target, counter in _targets(w, barrier, ctas, False):
        done = maximum(maximum(target.fill_free, begin + latency) + cost, last + latency)
        target.fill_free = done if target is cta else target.fill_free + cost
        target.filled += size
        counter.complete(size, done, "tma plain")


# -- stores ----------------------------------------------------------------------------------------------------
def tma_store(
    w: TimedWarp, map_address: int, coords: tuple[int, ...], come: int, how: str, mask: int, site: int
) -> None:
    info = _map(w, map_address)
    _store(w, info.box_bytes, _unread(w, info) if w.machine.cold else 0)


def bulk_store(
    w: TimedWarp, to: int, come: int, size: int, how: str, kind: str, mask: int, site: int
) -> None:
    cold = w.machine.cold
    _store(w, size, w.machine.touched.first(sectors_between(to, size), writes=True) if cold else 0)


def _store(w: TimedWarp, size: int, fresh: int) -> None:
    """Stores of an SM go one after the other; a share of their bytes holds up its loads. ``fresh``: of the whole chip,
    bytes that nothing has touched before.
    """
    clock, cta = w.clock, w.cta
    w.machine.dram_bytes += fresh
    w.machine.dram_written += fresh
    cost = size / w.machine.fill_narrow
    cta.store_free = maximum(cta.store_free, w.t) + cost
    cta.fill_free = maximum(cta.fill_free, w.t) + cost * clock.store_share
    cta.stored += size
    read = maximum(cta.store_free, w.t + clock.store_latency)
    w.bulk_open = read if w.bulk_open is None else maximum(w.bulk_open, read)
    if w.machine.record is not None:
        w.machine.record.append((f"CTA {cta.rank} stores", "store", float(w.t[0]), float(read[0])))


def bulk_commit(w: TimedWarp, mask: int) -> None:
    w.bulk_groups.append(w.bulk_open if w.bulk_open is not None else w.machine.zero)
    w.bulk_open = None


def bulk_wait(w: TimedWarp, most: int, reads: bool, mask: int, site: int) -> bool:
    """Never sleeps: the times of all stores are known at their issue."""
    while len(w.bulk_groups) > most:
        done = w.bulk_groups.pop(0)
        w.t = maximum(w.t, done if reads else done + w.clock.store_latency)
    return False


# -- tensor core -----------------------------------------------------------------------------------------------
def tensor_mma(
    w: TimedWarp, d: int, a: int, a_in_tmem: bool, b: int, idesc: int, sfa: int | None, sfb: int | None, disabled: Any,
    enable: int, kind: str, block: int, group: int, mask: int, site: int, collector: str = "",
) -> None:  # fmt: skip
    n, m = (idesc >> 17 & 63) << 3, (idesc >> 24 & 31) << 4
    cycles = w.machine.mma_cycles(group, m, n)
    pipe = w.cta.pipe
    if pipe.kind not in ("", kind):
        pipe.occupy(w, w.clock.kind_switch, "kind switch")
    pipe.kind = kind
    pipe.occupy(w, cycles, f"mma {kind}")


def tensor_cp(
    w: TimedWarp,
    to: int,
    descriptor: int,
    shape: str,
    spread: str,
    group: int,
    mask: int,
    site: int,
    packed: int = 0,
) -> None:
    w.cta.pipe.occupy(w, w.machine.sf_copy, "scale factor copy")


def tensor_commit(w: TimedWarp, where: int, ctas: int | None, group: int, mask: int, site: int) -> None:
    when = maximum(w.cta.pipe.free, w.t) + w.clock.mma_overhead[group]
    if ctas is None:
        find(w, where)[1].arrive(1, when, "tensor")
        return
    for rank in range(16):
        if ctas >> rank & 1:
            find(w, rank << 24 | where & 0xFFFFFF)[1].arrive(1, when, "tensor")


# -- tensor memory ---------------------------------------------------------------------------------------------
def tmem_access(w: TimedWarp, columns: int) -> None:
    """``tcgen05.ld`` and ``.st``: blocks the warp, as the first use of a register would."""
    w.t = w.t + w.machine.tmem_cycles(columns)


def tmem_alloc(w: TimedWarp, where: int, columns: int, group: int, site: int) -> bool:
    w.t = w.t + w.clock.tmem_alloc
    return False


def trap(w: TimedWarp) -> None:
    raise Unsupported("the kernel traps: a clocked run holds no data that could say why")


NAMES: dict[str, Any] = {
    function.__name__: function
    for function in (
        tma_load, tma_prefetch, bulk_load, tma_store, bulk_store, bulk_commit, bulk_wait, tensor_mma, tensor_cp,
        tensor_commit, tmem_access, tmem_alloc, trap,
    )
}  # fmt: skip
