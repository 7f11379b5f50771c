"""The numbers that a clocked run computes with: one vector entry per set of machine constants."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

# Special functions take their quarter's four results per clock (CUDA programming guide, cc 9.0 and 10.0): 8 clocks a
# warp, which is four data instructions of nominally 2.
SPECIAL_VECTORS: Final = 4.0
SPECIAL_CLK: Final = 8.0

Times: TypeAlias = np.ndarray
"""float64 of shape [sets]: SM cycles, or a rate, under each set of constants; entry 0 is the nominal set."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clock:
    """Every field of type ``Times`` has the same length. Cycles unless said otherwise.

    issue, vector, spin         a dependent scalar instruction, a data instruction of a warp, a barrier poll
    special                     a special function of a warp, as four data instructions
    shared_load, global_load    latency of a run of shared loads; of plain loads that L2 holds
    l1_load, l1_rate            latency of loads that L1 holds; bytes per cycle and SM of sectors through L1
    dram_mixed                  share of dram_rate that is left when as much is written as read
    fence_proxy, fence_gpu      fence.proxy.async, fence at gpu scope (an atomic round trip as well)
    wake, remote_arrive         phase completion -> waiting warp runs; arrival in another CTA of the cluster
    named_barrier, cluster_barrier   last arrival -> warps run
    tmem_alloc, tensor_map      TMEM allocation; first fetch of a TMA descriptor by a CTA
    tma_latency, tma_latency_cold    TMA issue -> first byte in shared memory, from L2 and from DRAM
    fill_narrow, fill_wide      bytes per cycle into one SM, TMA boxes of <= 128 and of 256 rows
    l2_rate                     bytes per cycle and SM of TMA requests with every SM active
    dram_rate                   bytes per cycle of the chip
    multicast_wait              more latency of a load that arrives in several CTAs
    store_latency, store_share  TMA store -> its slot is free; share of stored bytes that block loads of the SM
    mma_overhead                {cta_group: end of an MMA -> phase of its commit completes}
    sf_copy, kind_switch        tensor pipe: one tcgen05.cp; change of kind between two MMAs
    tmem_latency, tmem_column   tcgen05.ld: latency, and per 32-bit column of a warp
    start, drain                CTA begins -> first instruction; last instruction -> CTA has gone
    mma_cycles                  (cta_group, M of the group, N) -> cycles of one MMA, 32 bytes of K
    """

    issue: Times
    vector: Times
    spin: Times
    shared_load: Times
    global_load: Times
    l1_load: Times
    l1_rate: Times
    dram_mixed: Times
    fence_proxy: Times
    fence_gpu: Times
    wake: Times
    remote_arrive: Times
    named_barrier: Times
    cluster_barrier: Times
    tmem_alloc: Times
    tensor_map: Times
    tma_latency: Times
    tma_latency_cold: Times
    fill_narrow: Times
    fill_wide: Times
    l2_rate: Times
    dram_rate: Times
    multicast_wait: Times
    store_latency: Times
    store_share: Times
    mma_overhead: dict[int, Times]
    sf_copy: Times
    kind_switch: Times
    tmem_latency: Times
    tmem_column: Times
    start: Times
    drain: Times
    mma_cycles: Callable[[int, int, int], Times]

    @property
    def special(self) -> Times:
        return SPECIAL_VECTORS * self.vector

    @property
    def sets(self) -> int:
        return len(self.issue)

    def fill_rate(self, rows: int) -> Times:
        """Bytes per cycle into one SM for a box of so many rows: linear between the two measured widths."""
        share = min(max((rows - 128) / 128, 0.0), 1.0)
        return self.fill_narrow + share * (self.fill_wide - self.fill_narrow)
