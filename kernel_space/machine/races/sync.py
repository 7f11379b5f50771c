"""Synchronisation as the race checker sees it: what each barrier, fence and atomic orders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kernel_space.machine.races.shadow import Shadow, ended_key, is_ended_key, launch_of
from kernel_space.machine.values.clocks import (
    ALWAYS,
    ASYNC_GLOBAL,
    ASYNC_SHARED,
    ROWS,
    SCOPES,
    SPARE_BARRIERS,
    Clock,
    Known,
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
_ENDED = np.full((ROWS, 1), ALWAYS)  # stands for the clocks of all clusters of a launch
_WIDER = {"sys": "gpu", "gl": "gpu", "": "gpu"}  # there is one GPU
_ROWS_OF = {"global": (ASYNC_GLOBAL,), "shared::cta": (ASYNC_SHARED,), "shared::cluster": (ASYNC_SHARED,)}


def _is_narrow(tokens: tuple[str, ...]) -> bool:
    """An access or fence with a scope below the GPU?"""
    return tokens[0] in ("ld", "st", "atom", "red", "fence", "membar") and bool(
        {"cta", "cluster"} & {*tokens}
    )


def scope_of(name: str) -> str:
    return _WIDER.get(name, name)


def narrower(a: str, b: str) -> str:
    return SCOPES[min(SCOPES.index(a), SCOPES.index(b))]


class SyncRaces:
    """Clocks of warps and of everything they synchronise through.

    ``before``: the checker of the launch before in a row of launches that overlap, which share global memory.
    ``passed_on``: what the warps of this launch that have ended knew of earlier launches. ``cells``: (word, who may
    acquire from it) -> what was released there. ``narrow``: some access or fence has a scope below the GPU.
    """

    def __init__(self, program: Program, before: Any = None, *, in_a_row: bool = False) -> None:
        self.program = program
        self.before, self.in_a_row = before, in_a_row
        self.passed_on: Known = {}
        instrs = program.kernel.instrs
        self.barriers = 4 * sum(instr.tokens[:2] == ("mbarrier", "init") for instr in instrs) + SPARE_BARRIERS
        self.copies = any(
            instr.tokens[:2] == ("cp", "async") and instr.tokens[2] in ("ca", "cg") for instr in instrs
        )
        self.narrow = any(_is_narrow(instr.tokens) for instr in instrs)
        self.cells: dict[Any, Known] = before.cells if before else {}
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
            cluster.slots = Slots(
                cluster, size[0] * size[1] * size[2], warps, self.barriers, wgmma=wgmma, copies=self.copies,
                open_loads=len(self.program.open_loads),
            )  # fmt: skip
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

    def launch_waited(self, w: Warp, mask: int) -> None:
        """All of the launch before is performed and visible, to both proxies."""
        assert self.before is not None
        w.clock.acquires(mask)
        w.clock.hear({**self.before.passed_on, ended_key(self.before.machine.number): _ENDED})

    def launches_over(self, w: Warp) -> Known:
        """Earlier launches that this warp knows to be over: a copy that it issues now brings that to its barrier.

        Its bytes come behind its issue, and the issue behind the ``griddepcontrol.wait``; ``complete_tx`` is a release
        at cluster scope. What such a launch did is visible to the whole grid. What else the warp has written or seen
        does not go along: no release of its own has published that.
        """
        if not self.in_a_row:
            return {}
        return {key: clock for key, clock in w.clock.foreign.items() if is_ended_key(key)}

    def copy_arrives(self, barrier: MBarrier, over: Known) -> None:
        barrier.clock.foreign = merged(barrier.clock.foreign, over)

    def cta_done(self, cta: Cta) -> None:
        """Shared and tensor memory end with their CTA."""
        cta.shadow = cta.tmem_shadow = None

    # -- mbarriers -----------------------------------------------------------------------------------------------
    def mbarrier_init(self, w: Warp, barrier: MBarrier, site: int) -> None:
        slots = w.cta.cluster.slots
        barrier.slot = slots.barrier_slot(barrier)
        barrier.base = slots.released_phases.get(barrier.slot, 0)
        barrier.clock = SyncObject()
        w.clock.inits += 1
        w.clock.clock[0, w.clock.init_slot] = w.clock.inits
        barrier.made = (w.clock.init_slot, w.clock.inits, site)

    def check_made(self, w: Warp, barrier: MBarrier, site: int) -> None:
        """Its initialisation must have happened before any use."""
        slot, epoch, made = barrier.made
        if w.clock.clock[0, slot] < epoch:
            self.report(
                ("init", made, site),
                f"{barrier.label} is used by {w.who} before its initialisation is visible to that warp",
                site, w.who, made, w.cta.cluster.slots.names[slot].removeprefix("mbarrier.init of "),
            )  # fmt: skip

    def phase_done(self, barrier: MBarrier) -> None:
        total = barrier.base + barrier.phase
        barrier.cta.cluster.slots.released_phases[barrier.slot] = total
        sync = barrier.clock
        if sync.gathered is None:
            sync.gathered = barrier.cta.cluster.slots.clock()
        sync.gathered[:, barrier.slot] = total
        self._check_waits(barrier, sync.gathered)
        sync.complete()

    def _check_waits(self, barrier: MBarrier, gathered: Clock) -> None:
        """A phase must not complete before all who wait for the one before it have seen that: parity takes the two for
        one another. Whoever has waited in time by luck alone is not behind any arrival of this phase.
        """
        for warp, (number, site) in barrier.seen.items():
            if gathered[0, warp.clock.wait_slot] < number:
                phase = barrier.phase - 1
                self.report(
                    ("overtaken", barrier.name, site),
                    f"phase {phase} of {barrier.label} may complete before {warp.who} has seen that the one before it "
                    "did: none of its arrivals comes behind that wait, which may come too late and go on for ever",
                    site, warp.who, -1, "",
                )  # fmt: skip
        barrier.seen.clear()

    def arrive(self, w: Warp, barrier: MBarrier, release: str, mask: int, site: int) -> None:
        """``release``: the scope, or "" for a relaxed arrival, which releases what a fence before it does."""
        self.check_made(w, barrier, site)
        w.clock.arrived(mask)
        near = barrier.cta is w.cta
        if release and (near or release != "cta"):
            return barrier.clock.gather(w.clock.release(mask), w.clock.foreign)
        barrier.clock.gather_waits(w.clock.slots, w.clock.clock)
        if not release and (found := w.clock.fences.get("cta" if near else "cluster")):
            barrier.clock.gather(*found)

    def copy_issued(self, w: Warp, barrier: MBarrier) -> None:
        """Its bytes are of a phase that cannot complete before them."""
        barrier.clock.gather_waits(w.clock.slots, w.clock.clock)

    def observe(self, w: Warp, barrier: MBarrier, acquire: bool, mask: int, site: int) -> None:
        self.check_made(w, barrier, site)
        w.clock.acquires(mask)
        barrier.seen[w] = (w.clock.waited(), site)
        w.clock.hear_lanes(barrier.clock.released)
        if acquire:
            barrier.clock.give(w.clock)
        elif barrier.clock.released is not None:
            w.clock.join(w.clock.slots.only_waits(barrier.clock.released))
            seen = {**barrier.clock.released_foreign, w.cta.cluster.key: barrier.clock.released}
            w.clock.unfenced[barrier] = (seen, "cluster")

    # -- barriers of threads -------------------------------------------------------------------------------------
    def named_arrive(self, w: Warp, barrier: NamedBarrier) -> None:
        if barrier.clock is None:
            barrier.clock = SyncObject()
        barrier.clock.gather(w.clock.release(), w.clock.foreign)

    def named_release(self, waiters: list[Warp], barrier: NamedBarrier) -> None:
        barrier.clock.complete()
        for warp in waiters:
            warp.meetings += 1
            barrier.clock.give(warp.clock)

    def cluster_arrive(self, w: Warp, cluster: Cluster, release: bool) -> None:
        """A relaxed arrival orders only what a fence before it has released: all, or the mbarriers made."""
        clock = w.clock
        if release:
            return cluster.sync.gather(clock.release(), clock.foreign)
        cluster.sync.gather_waits(clock.slots, clock.clock)
        if "cluster" in clock.fences:
            cluster.sync.gather(*clock.fences["cluster"])
        if clock.init_fence:
            made = clock.slots.clock()
            made[0, clock.init_slot] = clock.init_fence
            cluster.sync.gather(made, {})

    def cluster_done(self, cluster: Cluster) -> None:
        cluster.sync.complete()

    def cluster_observe(self, w: Warp, cluster: Cluster) -> None:
        w.meetings += 1
        cluster.sync.give(w.clock)

    def alloc_asked(self, w: Warp, tmem: Any) -> None:
        """Under cta_group::2 the two warps that allocate wait for each other."""
        tmem.clock = w.clock.release()

    # -- fences --------------------------------------------------------------------------------------------------
    def proxy_fence(self, w: Warp, kind: str, space: str, mask: int) -> None:
        if kind.startswith("async"):
            w.clock.proxy_fence(_ROWS_OF.get(space, (ASYNC_SHARED, ASYNC_GLOBAL)), mask)

    def init_fence(self, w: Warp) -> None:
        """``fence.mbarrier_init``: of all that came before, it releases the initialisation of mbarriers alone."""
        w.clock.init_fence = w.clock.inits

    def memory_fence(self, w: Warp, order: str, scope: str, mask: int) -> None:
        """A fence releases for the relaxed accesses behind it and acquires for those before it."""
        scope = scope_of(scope)
        w.clock.acquires(mask)
        w.meetings += 1  # of lanes that run together, as they do wherever this matters
        for key, (_, read) in list(w.clock.unfenced.items()):
            if SCOPES.index(read) <= SCOPES.index(scope):
                self._take(w, w.clock.unfenced.pop(key)[0])
            elif isinstance(key, tuple):
                self._take(w, self._seen(w, key, narrower(read, scope)))
        w.clock.memory_fence(scope, mask)

    def warp_synced(self, w: Warp, mask: int) -> None:
        w.clock.synced(mask)

    def tensor_fence(self, w: Warp, before: bool, mask: int) -> None:
        raise NotImplementedError

    # -- synchronisation through memory --------------------------------------------------------------------------
    def sync_store(self, w: Warp, cell: tuple[int, int], order: str, scope: str, mask: int) -> None:
        """A store or atomic that others may acquire from: a release, or a relaxed one behind a fence."""
        clock, scope = w.clock, scope_of(scope)
        if order in _RELEASES:
            return self._publish(w, cell, scope, (clock.release(mask), dict(clock.foreign)))
        if order != "weak":
            for level in SCOPES[: SCOPES.index(scope) + 1]:
                if level in clock.fences:
                    self._publish(w, cell, level, clock.fences[level])

    def _publish(self, w: Warp, cell: tuple[int, int], scope: str, what: tuple[Clock, Known]) -> None:
        own, foreign = what
        for place in self._places(w, scope):
            known = self.cells.get((cell, place), {})
            self.cells[cell, place] = merged(known, {**foreign, w.cta.cluster.key: own})

    def _places(self, w: Warp, scope: str) -> list[Any]:
        """Who may acquire: accesses of two threads synchronise if the scope of each includes the other thread."""
        if not self.narrow:
            return ["gpu"]
        cluster, cta = w.cta.cluster.key, (w.cta.cluster.key, w.cta.rank)
        return [("cta", cta), ("cluster", cluster), "gpu"][: SCOPES.index(scope) + 1]

    def sync_load(self, w: Warp, cell: tuple[int, int], order: str, scope: str, mask: int) -> None:
        scope = scope_of(scope)
        if order in _ACQUIRES:
            w.clock.acquires(mask)
            self._take(w, self._seen(w, cell, scope))
        elif order != "weak":
            w.clock.unfenced[cell] = (self._seen(w, cell, scope), scope)

    def _seen(self, w: Warp, cell: tuple[int, int], scope: str) -> Known:
        seen: Known = {}
        for place in self._places(w, scope):
            found = self.cells.get((cell, place))
            if found is not None:
                seen = merged(seen, found) if seen else found
        return seen

    def _take(self, w: Warp, known: Known) -> None:
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
