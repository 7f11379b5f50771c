"""Sums of a tile's CTAs meet in shared memory; each CTA finishes a strip of the tile's columns.

A tile of few rows of x has more k-tiles than anything else, so up to 8 CTAs divide them. In a workspace their sums
would be added by one CTA, the others done. Here the octets of columns are dealt out to the CTAs of the cluster (the
first CTAs have one more where they cannot be equal):

1. Every consumer thread is done with the ring of x, of its own CTA and, behind the barrier of the cluster, of all.
2. A thread sends each vector of four sums (``st.async``) to the CTA that owns its octet, itself included. There they
   lie where x has been, at the place of the sender's rank and of the thread, and the owner's barrier counts bytes.
3. The same thread of the owner adds the vectors of all ranks, in their order: bits are those of any launch. Until they
   are there it multiplies the low-rank branch of its strip (``branch.py``).

No CTA waits for one that may not run, for clusters start whole; nobody touches the shared memory of a CTA that has got
all of its bytes, so it ends without another barrier. A barrier of the cluster waits for threads that have not ended:
warps that load what the consumers have waited for end at once, and warp 1, which has more to do, arrives ahead.
"""

from typing import Any

import cutlass
from cutlass import Int32, cute

from kernel_space.operators.svdquant_gemm.parts.allocations import ACC_DTYPE
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.ptx import (
    load_shared_f32,
    map_to_rank,
    store_async,
)
from kernel_space.operators.svdquant_linear_16bit.fused.config import OCTET
from kernel_space.operators.svdquant_linear_16bit.fused.layouts import SUMS, FusedLayouts

VECTOR_BYTES = 16


class ClusterSums:
    """Mixin of the consumer roles."""

    config: Any
    split_k: int

    @cute.jit
    def send_sums(self, lay: FusedLayouts, accs: Any, buffers: Any, rank: Int32, place: Int32):
        """To the CTAs of the cluster, each what it owns. ``place``: of this thread among all consumers."""
        arrived = buffers[SUMS].iterator
        _, count = self.strip(lay, rank)
        if place == 0:
            octet = cute.size(lay.sums, mode=[1]) * self.config.row_blocks * VECTOR_BYTES * self.split_k
            cute.arch.mbarrier_arrive_and_expect_tx(arrived, count * octet)
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        self._send(lay, accs, buffers["dequantized"].iterator.toint(), arrived, rank, place)

    @cute.jit
    def add_sums(self, lay: FusedLayouts, strips: Any, buffers: Any, place: Int32):
        """Of all CTAs of the cluster to ``strips``, when they are here."""
        cute.arch.mbarrier_wait(buffers[SUMS].iterator, 0)
        self._add(lay, strips, buffers["dequantized"].iterator.toint(), place)

    def make_strips(self) -> list[cute.Tensor]:
        """Accumulators of as many octets as the widest strip has; of a narrower one the last will be void."""
        shape = ((2, 2, self.config.strip_octets), 1, 1)
        strips = [cute.make_rmem_tensor(shape, ACC_DTYPE) for _ in range(self.config.row_blocks)]
        for strip in strips:
            strip.fill(0.0)
        return strips

    def _octets(self, lay: FusedLayouts) -> tuple[int, int]:
        """Octets of a tile that each CTA has at least, and how many have one more."""
        return divmod(lay.columns // OCTET, self.split_k)

    @cute.jit
    def strip(self, lay: FusedLayouts, rank: Int32):
        """First octet of a rank's strip, and its octets."""
        each, more = self._octets(lay)
        return rank * each + cutlass.min(rank, Int32(more)), each + Int32(rank < more)

    def _send(self, lay: FusedLayouts, accs: Any, base: Any, arrived: Any, rank: Any, place: Any) -> None:
        each, more = self._octets(lay)
        for owner in range(self.split_k):
            first = owner * each + min(owner, more)
            target = map_to_rank(base, Int32(owner))
            barrier = map_to_rank(arrived.toint(), Int32(owner))
            for i in range(each + (owner < more)):
                for b, acc in enumerate(accs):
                    values = [acc[(e, half, first + i), 0, 0] for half in range(2) for e in range(2)]
                    offset = cute.crd2idx((0, place, b, i, rank), lay.sums) * 4
                    store_async(target + offset, values, barrier)

    def _add(self, lay: FusedLayouts, strips: Any, base: Any, place: Any) -> None:
        for b, strip in enumerate(strips):
            for i in range(self.config.strip_octets):
                for source in range(self.split_k):
                    piece = load_shared_f32(base + cute.crd2idx((0, place, b, i, source), lay.sums) * 4)
                    for value in range(4):
                        at = (value % 2, value // 2, i), 0, 0
                        strip[at] = strip[at] + piece[value]
