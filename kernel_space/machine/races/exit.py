"""Ends of lives: what must be over before a CTA exits, a pair frees its TMEM, or an accumulator is released."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kernel_space.machine.races.shadow import Access
from kernel_space.machine.races.tensor import ALL_LANES, TensorRaces
from kernel_space.machine.units.tensor_loads import TensorLoad

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Cluster, Cta, Warp
    from kernel_space.machine.units.barriers import NamedBarrier
    from kernel_space.machine.units.mbarrier import MBarrier
    from kernel_space.machine.units.tensor_pipe import TensorPipe


class ExitRaces(TensorRaces):
    """``visits``: per CTA, the last access of each clock slot of another CTA to its shared memory, or arrival on one
    of its barriers.
    """

    def __init__(self, program: Any, before: Any = None, *, in_a_row: bool = False) -> None:
        super().__init__(program, before, in_a_row=in_a_row)
        self.visits: dict[Cta, dict[int, tuple[int, int, str, str]]] = {}

    # -- arrivals in a CTA that may have ended ---------------------------------------------------------------------
    def arrive(self, w: Warp, barrier: MBarrier, release: str, mask: int, site: int) -> None:
        self._visit(w.cta, barrier, w.clock.slot, w.clock.epoch, site)
        self._settle_loads(w)
        super().arrive(w, barrier, release, mask, site)

    def named_arrive(self, w: Warp, barrier: NamedBarrier) -> None:
        self._settle_loads(w)
        super().named_arrive(w, barrier)

    def cluster_arrive(self, w: Warp, cluster: Cluster, release: bool) -> None:
        self._settle_loads(w)
        super().cluster_arrive(w, cluster, release)

    def tensor_commit(self, w: Warp, pipe: TensorPipe, barriers: list[MBarrier], lane: int, site: int) -> Any:
        slot, number = self.issuers.get(w, {}).get((pipe, lane), (pipe.slot, pipe.sequence))
        for barrier in barriers:
            self._visit(w.cta, barrier, slot, number, site)
        return super().tensor_commit(w, pipe, barriers, lane, site)

    def _visit(self, cta: Cta, barrier: MBarrier, slot: int, value: int, site: int) -> None:
        if barrier.cta is not cta:
            who = cta.cluster.slots.names[slot]
            self.visit(barrier.cta, slot, value, site, who, f"arrives on its {barrier.label}")

    def visit(self, cta: Cta, slot: int, value: int, site: int, who: str, what: str) -> None:
        self.visits.setdefault(cta, {})[slot] = (value, site, who, what)

    def cta_done(self, cta: Cta) -> None:
        """Some warp of the CTA must know of every arrival from outside and of every bulk store's last read."""
        known = np.max([warp.clock.clock[0] for warp in cta.warps], axis=0)
        for slot, (value, site, who, what) in self.visits.pop(cta, {}).items():
            if known[slot] < value:
                self.report(
                    ("exit", site), f"CTA {cta.rank} may end before {who} {what}: none "
                    "of its warps waits for that", site, who, -1, "",
                )  # fmt: skip
        for warp in cta.warps:
            self._check_stores(cta, warp)
        super().cta_done(cta)

    def _check_stores(self, cta: Cta, warp: Warp) -> None:
        for slot, _ in warp.clock.of_bulk.values():
            self._check_store(cta, warp, slot)

    def _check_store(self, cta: Cta, warp: Warp, slot: int) -> None:
        found = cta.shadow.readers.get(slot)
        if found is None:
            return
        values, sites = found
        at = int(np.argmax(values))
        if values[at] > warp.clock.clock[0, slot]:
            site = int(sites[at])
            self.report(
                ("exit", site), f"{warp.who} ends while a bulk store may still read SMEM {self._smem(cta, at)}; no "
                "cp.async.bulk.wait_group covers it", site, warp.who, -1, "",
            )  # fmt: skip

    # -- deallocation by a pair ------------------------------------------------------------------------------------
    def tmem_dealloc(self, w: Warp, base: int, columns: int, group: int, site: int) -> None:
        """Under cta_group::2 the columns of both CTAs go, so the peer must be done with its own too."""
        super().tmem_dealloc(w, base, columns, group, site)
        if group == 1:
            return
        peer = w.cta.peer(w.cta.rank ^ 1)
        shadow = peer.tmem_shadow
        if shadow is None:
            return
        cells = (ALL_LANES, slice(base, base + columns))
        access = Access(w.clock.slot, w.clock.epoch, site)
        for conflict in (
            shadow.writers_before(cells, w.clock.clock[0]),
            shadow.readers_before(cells, w.clock.clock[0], w.clock.slot),
        ):
            if conflict is not None:
                self._tmem_conflict(w, peer, conflict, access, "tcgen05.dealloc", "deallocation race")

    # -- loads of TMEM that are still under way --------------------------------------------------------------------
    def tmem_read(self, w: Warp, lane: int, lanes: int, column: int, count: int, site: int) -> None:
        super().tmem_read(w, lane, lanes, column, count, site)
        w.tensor_loads.append(TensorLoad(w.clock.loads, site))

    def tmem_write(self, w: Warp, lane: int, lanes: int, column: int, count: int, site: int) -> None:
        self._settle_loads(w)
        super().tmem_write(w, lane, lanes, column, count, site)

    def tmem_wait(self, w: Warp, what: str) -> None:
        super().tmem_wait(w, what)
        if what == "ld":
            self._loaded(w)

    def _loaded(self, w: Warp) -> None:
        w.tensor_loads.clear()
        w.clock.raise_slot(w.clock.load_slot, w.clock.loads)

    def _settle_loads(self, w: Warp) -> None:
        """Before a release: loads whose registers were used since count as complete, up to the first that were not."""
        loads = w.tensor_loads
        while loads and loads[0].used:
            w.clock.raise_slot(w.clock.load_slot, loads.pop(0).number)
