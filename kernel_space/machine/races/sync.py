"""Synchronisation as the race checker sees it: what each barrier, fence and atomic orders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kernel_space.machine.races.shadow import Shadow, ended_key, launch_of
from kernel_space.machine.values.clocks import (
    ALWAYS,
    SPARE_BARRIERS,
    Clock,
    Slots,
    SyncObject,
    WarpClock,
    merged,
)

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Cluster, Cta, Machine, Warp
    from kernel_space.machine.translate.translate import Program
    from kernel_space.machine.units.barriers import NamedBarrier
    from kernel_space.machine.units.mbarrier import MBarrier

_RELEASES = ("release", "acq_rel", "sc")
_ACQUIRES = ("acquire", "acq_rel", "sc")
_ENDED = np.full((2, 1), ALWAYS)  # stands for the clocks of all clusters of a launch


class SyncRaces:
    """Clocks of warps and of everything they synchronise through.

    ``before``: the checker of the launch before in a row of launches that overlap, which share global memory.
    ``passed_on``: what the warps of this launch that have ended knew of earlier launches.
    """

    def __init__(self, program: Program, before: Any = None, *, in_a_row: bool = False) -> None:
        self.program = program
        self.before, self.in_a_row = before, in_a_row
        self.passed_on: dict[int, Clock] = {}
        instrs = program.kernel.instrs
        self.barriers = 4 * sum(instr.tokens[:2] == ("mbarrier", "init") for instr in instrs) + SPARE_BARRIERS
        self.cells: dict[tuple[int, int], dict[int, Clock]] = before.cells if before else {}
        self.clusters: dict[int, Slots] = before.clusters if before else {}

    def attach(self, machine: Machine) -> None:
        self.machine = machine

    # -- construction --------------------------------------------------------------------------------------------
    def add_cta(self, cta: Cta) -> None:
        cluster = cta.cluster
        if cluster.slots is None:
            block, size = self.machine.launch.block, self.machine.launch.cluster
            warps = -(-(block[0] * block[1] * block[2]) // 32)
            wgmma = bool(self.program.wgmma_bits)
            cluster.slots = Slots(cluster, size[0] * size[1] * size[2], warps, self.barriers, wgmma=wgmma)
            cluster.sync = SyncObject()
            self.clusters[cluster.key] = cluster.slots
        cta.pipe.slot = cluster.slots.new(f"tensor pipe{cta.suffix}")
        cta.shadow = Shadow(len(cta.smem.u8) // 4)
        cta.tmem_shadow = Shadow((8, 512))

    def add_warp(self, warp: Warp) -> None:
        warp.clock = WarpClock(warp.cta.cluster.slots, warp)

    # -- launches in a row ---------------------------------------------------------------------------------------
    def warp_done(self, w: Warp) -> None:
        """What a launch has seen is in the past of whoever waits for its end."""
        if self.in_a_row:
            own = self.machine.number
            known = {key: clock for key, clock in w.clock.foreign.items() if launch_of(key) != own}
            self.passed_on = merged(self.passed_on, known)

    def launch_waited(self, w: Warp) -> None:
        """All of the launch before is performed and visible, to both proxies."""
        assert self.before is not None
        w.clock.hear({**self.before.passed_on, ended_key(self.before.machine.number): _ENDED})

    def cta_done(self, cta: Cta) -> None:
        """Shared and tensor memory end with their CTA."""
        cta.shadow = cta.tmem_shadow = None

    # -- mbarriers -----------------------------------------------------------------------------------------------
    def mbarrier_init(self, w: Warp, barrier: MBarrier, site: int) -> None:
        slots = w.cta.cluster.slots
        barrier.slot = slots.barrier_slot(barrier)
        barrier.base = slots.released_phases.get(barrier.slot, 0)
        barrier.clock = SyncObject()
        barrier.made = (w.clock.slot, w.clock.epoch, site)

    def check_made(self, w: Warp, barrier: MBarrier, site: int) -> None:
        """Its initialisation must have happened before any use."""
        slot, epoch, made = barrier.made
        if slot != w.clock.slot and w.clock.clock[0, slot] < epoch:
            self.report(
                ("init", made, site),
                f"{barrier.label} is used by {w.who} before its initialisation is visible to that warp",
                site, w.who, made, w.cta.cluster.slots.names[slot],
            )  # fmt: skip

    def phase_done(self, barrier: MBarrier) -> None:
        total = barrier.base + barrier.phase
        barrier.cta.cluster.slots.released_phases[barrier.slot] = total
        sync = barrier.clock
        if sync.gathered is None:
            sync.gathered = barrier.cta.cluster.slots.clock()
        sync.gathered[:, barrier.slot] = total
        sync.complete()

    def arrive(self, w: Warp, barrier: MBarrier, release: bool, site: int) -> None:
        self.check_made(w, barrier, site)
        if release:
            barrier.clock.gather(w.clock.release(), w.clock.foreign)

    def observe(self, w: Warp, barrier: MBarrier, acquire: bool, site: int) -> None:
        self.check_made(w, barrier, site)
        if acquire:
            barrier.clock.give(w.clock)

    # -- barriers of threads -------------------------------------------------------------------------------------
    def named_arrive(self, w: Warp, barrier: NamedBarrier) -> None:
        if barrier.clock is None:
            barrier.clock = SyncObject()
        barrier.clock.gather(w.clock.release(), w.clock.foreign)

    def named_release(self, waiters: list[Warp], barrier: NamedBarrier) -> None:
        barrier.clock.complete()
        for warp in waiters:
            barrier.clock.give(warp.clock)

    def cluster_arrive(self, w: Warp, cluster: Cluster, release: bool) -> None:
        """A relaxed arrival orders only what a fence before it has released."""
        if release or w.clock.initialised:
            cluster.sync.gather(w.clock.release(), w.clock.foreign)

    def cluster_done(self, cluster: Cluster) -> None:
        cluster.sync.complete()

    def cluster_observe(self, w: Warp, cluster: Cluster) -> None:
        cluster.sync.give(w.clock)

    def alloc_asked(self, w: Warp, tmem: Any) -> None:
        """Under cta_group::2 the two warps that allocate wait for each other."""
        tmem.clock = w.clock.release()

    # -- fences --------------------------------------------------------------------------------------------------
    def proxy_fence(self, w: Warp, kind: str, space: str) -> None:
        if kind == "async":
            w.clock.proxy_fence()

    def memory_fence(self, w: Warp, order: str, scope: str) -> None:
        """A fence releases for the relaxed accesses behind it and acquires for those before it."""
        clock = w.clock
        clock.initialised = True
        if scope in ("gpu", "sys", "gl"):
            for cell in clock.unfenced:
                self._take(w, cell)
            clock.unfenced = []
            clock.fence = (clock.release(), dict(clock.foreign))

    # -- global synchronisation ----------------------------------------------------------------------------------
    def sync_store(self, w: Warp, cell: tuple[int, int], order: str) -> None:
        """A store or atomic that others may acquire from."""
        clock = w.clock
        if order in _RELEASES:
            clock.fence = (clock.release(), dict(clock.foreign))
        if clock.fence is None:
            return
        own, foreign = clock.fence
        known = self.cells.get(cell, {})
        self.cells[cell] = merged(known, {**foreign, w.cta.cluster.key: own})

    def sync_load(self, w: Warp, cell: tuple[int, int], order: str) -> None:
        if order in _ACQUIRES:
            self._take(w, cell)
        elif order != "weak":
            w.clock.unfenced.append(cell)

    def _take(self, w: Warp, cell: tuple[int, int]) -> None:
        known = self.cells.get(cell, {})
        number = w.cta.cluster.key
        own = known.get(number)
        if own is not None:
            w.clock.join(own)
        w.clock.hear({key: clock for key, clock in known.items() if key != number})

    def report(
        self, key: tuple[Any, ...], text: str, site: int, who: str, other_site: int, other: str,
        machine: Any = None,
    ) -> None:  # fmt: skip
        raise NotImplementedError
