"""Cluster launch control: a running cluster takes over the work of one that has not started. PTX ISA 9.7.13.17.

The 16-byte response is opaque to programs; here word 0 is 1 for success, words 1 to 3 are the coordinates of the first
CTA of the cancelled cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_space.machine.units.mbarrier import MBarrier, find

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Cta, Machine, Warp


class Response:
    """Delivers 16 bytes to each target: (CTA, offset, barrier)."""

    kind = "tma"

    def __init__(self, machine: Machine, targets: list[tuple[Cta, int, MBarrier]], who: str) -> None:
        self.machine, self.targets, self.who = machine, targets, who

    def run(self) -> None:
        words = _take_cluster(self.machine)
        for cta, offset, barrier in self.targets:
            cta.smem.views[4][offset // 4 : offset // 4 + 4] = words
            if cta.smem.undefined is not None:
                cta.smem.undefined.u8[offset : offset + 16] = 0
            barrier.complete(16, self.who)


def _take_cluster(machine: Machine) -> tuple[int, int, int, int]:
    """Cancel the launch of the next cluster of the grid, if one is left."""
    if machine.next_cluster >= machine.cluster_count:
        return (0, 0, 0, 0)
    number = machine.next_cluster
    machine.next_cluster += 1
    nx, ny, _ = machine.cluster_counts
    place = (number % nx, number // nx % ny, number // (nx * ny))
    x, y, z = (p * c for p, c in zip(place, machine.launch.cluster, strict=True))
    return (1, x, y, z)


def try_cancel(w: Warp, to: int, barrier: int, multicast: bool, mask: int, site: int) -> None:
    """``clusterlaunchcontrol.try_cancel``: with multicast every CTA of the cluster gets the response."""
    w.site = site
    offset = to & 0xFFFFFF
    ctas = w.cta.cluster.ctas if multicast else [w.cta.peer(to >> 24)]
    targets = [(cta, offset, find(w, cta.rank << 24 | barrier & 0xFFFFFF)) for cta in ctas]
    for cta, _, _ in targets:
        cta.smem.check(offset, offset + 16, 16, "clusterlaunchcontrol.try_cancel")
    for _ in range(mask.bit_count()):
        if w.races is not None:
            w.races.bulk_load(w, 16, targets, site)
        w.machine.issue(Response(w.machine, targets, f"try_cancel of {w.who}"), w.cta)
