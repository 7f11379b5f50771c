"""From sums to results: those of the cluster's CTAs are added and stored.

1. Every multiplying warp is done with the rings of x and weights, of its own CTA and of those with the same tile, which
   tell one another.
2. A thread sends each vector of four sums (``st.async``) to the CTA that owns its octet of columns, but for its own.
   There they lie where weights have been, at the place of the sender's rank and of the thread, and the owner's barrier
   counts bytes.
3. The same thread of the owner adds them to its own, those of the next rank first: bits are those of any launch.
4. Four lanes of a row exchange four octets, so that each stores 16 bytes.

The low-rank branch is part of the sums (``multiply.py``).

No CTA waits for one that may not run, for clusters start whole; nobody touches the shared memory of a CTA that has got
all of its bytes, so it ends without a barrier.
"""

from typing import Any

import cutlass
from cutlass import Int32, Int64, Uint32, cute

from kernel_space.operators.nvfp4_quantize.parts.ptx import store_if
from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import (
    finish_gated_pair,
    finish_pair,
    load_shared,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import MMA_ROWS, WARP_ROWS
from kernel_space.operators.svdquant_gemm.sm90a_parts.split_k import ALL_BARRIER, GROUP_THREADS
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.ptx import (
    copy_async,
    load_shared_f32,
    map_to_rank,
    store_async,
)
from kernel_space.operators.svdquant_linear_16bit.fused.ptx import fence_proxies
from kernel_space.operators.svdquant_linear_16bit.staged.config import OCTET
from kernel_space.operators.svdquant_linear_16bit.staged.layouts import (
    AFFINE,
    HALF_BYTES,
    PEERS_DONE,
    SUMS_FULL,
    WEIGHTS,
    WORD_BYTES,
    StagedLayouts,
)
from kernel_space.operators.svdquant_linear_16bit.staged.ptx import exchanged
from kernel_space.operators.svdquant_linear_16bit.staged.strips import Strips
from kernel_space.operators.svdquant_linear_16bit.whole.ptx import round_pair

VECTOR_BYTES = 16
QUAD = 4  # lanes with a row of an octet


class Finish:
    """Mixin with what multiplying warps do before and after their loop."""

    config: Any
    split_k: int
    has_lora: bool
    quantizes: bool

    def _thread(self) -> tuple[Any, Any]:
        """This thread among all that multiply, and its warpgroup."""
        tidx, _, _ = cute.arch.thread_idx()
        thread = tidx - GROUP_THREADS * (1 + self.config.num_dequant_warpgroups)
        return thread, cute.arch.make_warp_uniform(thread // GROUP_THREADS)

    @cute.jit
    def up_consumers(self, place: Any, y: Any, vectors: Any, m: Int32, n: Int32, buffers: Any):
        """A tile of y, or this CTA's part of it along K."""
        lay = self._layouts()
        thread, group = self._thread()
        self._copy_vectors(lay, place, vectors, n, buffers, thread)
        if cutlass.const_expr(self.quantizes):
            self.quantize_others(lay, place, buffers, m, thread)
        cute.arch.cp_async_wait_group(0)
        cute.arch.barrier(barrier_id=ALL_BARRIER, number_of_threads=32 * lay.multiplying_warps)
        accs = self.zeros(lay.columns)
        self.multiply_weights(place, accs, buffers, group)
        strips = self._whole_sums(lay, lay.strips, accs, buffers, place, thread)
        self._store(lay, place, strips, y, m, n, buffers, thread, group)
        if cutlass.const_expr(self.quantizes):
            # These warps have looked at a counter, too, and none of the CTA does any more.
            if thread == 0:
                self.take(lay, place)

    @cute.jit
    def down_consumers(self, place: Any, lora_act_in: Any, m: Int32, buffers: Any):
        """A tile of lora_act_in: multiply, add up, store and say so."""
        lay = self._layouts()
        thread, group = self._thread()
        accs = self.zeros(lay.down_columns)
        self.multiply_down(place, accs, buffers, group)
        strips = self._whole_sums(lay, lay.down_strips, accs, buffers, place, thread)
        self._store_down(lay, place, strips, lora_act_in, m, thread, group)
        # They are read by TMA.
        fence_proxies()
        # All of the CTA's stores are part of what one thread releases.
        cute.arch.barrier(barrier_id=ALL_BARRIER, number_of_threads=32 * lay.multiplying_warps)
        if thread == 0:
            cute.arch.atomic_add(place["ready"], Int32(1), sem="release", scope="gpu")

    @cute.jit
    def _copy_vectors(
        self, lay: StagedLayouts, place: Any, vectors: Any, n: Int32, buffers: Any, thread: Int32
    ):
        """wcscale and bias of the tile's columns; zeros beyond N. Unrolled: ptxas (13.0) took what a loop had made of
        the number of the thread for that number, where sums are read later; the PTX was right.
        """
        begin, threads = place["column_tile"] * lay.columns, 32 * lay.multiplying_warps
        pieces = lay.columns // 4
        for which in cutlass.range_constexpr(2):
            for first in cutlass.range_constexpr(0, pieces, threads):
                at = thread + first
                if at < pieces:
                    source = vectors[which].toint() + Int64(begin + at * 4) * WORD_BYTES
                    target = buffers[AFFINE].iterator.toint() + (which * lay.columns + at * 4) * WORD_BYTES
                    copy_async(target, source, Int32(begin + at * 4 < n) * 16, 16)
        cute.arch.cp_async_commit_group()

    # -- sums -----------------------------------------------------------------------------------------------------

    def _whole_sums(
        self, lay: StagedLayouts, dealt: Strips, accs: list[Any], buffers: Any, place: Any, thread: Any
    ) -> list[Any]:
        """Of all K, by row block: of the tile, or of this CTA's strip of it, as many octets as the widest strip has."""
        if self.split_k == 1:
            return accs
        self.send_sums(lay, dealt, accs, buffers, place, thread)
        strips = self.zeros(dealt.most * OCTET)
        self._own_strip(dealt, accs, strips, place)
        self.add_sums(lay, dealt, strips, buffers, thread)
        return strips

    @cute.jit
    def send_sums(
        self,
        lay: StagedLayouts,
        dealt: cutlass.Constexpr,
        accs: Any,
        buffers: Any,
        place: Any,
        thread: Int32,
    ):
        """To the other CTAs that share the tile, each what it owns."""
        arrived = buffers[SUMS_FULL].iterator
        _, count = dealt.of_rank(place["rank"])
        if thread == 0:
            octet = 32 * lay.multiplying_warps * self.config.row_blocks * VECTOR_BYTES * (self.split_k - 1)
            cute.arch.mbarrier_arrive_and_expect_tx(arrived, count * octet)
        # Others may count at this CTA's barriers, and it at theirs.
        cute.arch.cluster_wait()
        cute.arch.sync_warp()
        lane = cute.arch.lane_idx()
        if lane < self.split_k:
            cute.arch.mbarrier_arrive(buffers[PEERS_DONE].iterator, place["peers"] + lane)
        cute.arch.mbarrier_wait(buffers[PEERS_DONE].iterator, 0)
        base = buffers[WEIGHTS].iterator.toint()
        for owner in cutlass.range_constexpr(self.split_k):
            if place["rank"] != owner:
                behind = (place["rank"] - owner + self.split_k - 1) % self.split_k
                target = map_to_rank(base, place["peers"] + owner)
                barrier = map_to_rank(arrived.toint(), place["peers"] + owner)
                self._send(lay, dealt.of(owner), accs, (target, barrier), behind, thread)

    @staticmethod
    def _send(
        lay: StagedLayouts,
        strip: tuple[int, int],
        accs: Any,
        there: tuple[Any, Any],
        behind: Any,
        thread: Any,
    ) -> None:
        """A strip of this CTA's sums to its owner; ``behind``: how many ranks this one is behind that, less one."""
        first, count = strip
        for i in range(count):
            for b, acc in enumerate(accs):
                values = [acc[(e, half, first + i), 0, 0] for half in range(2) for e in range(2)]
                offset = cute.crd2idx((0, thread, b, i, behind), lay.sums) * WORD_BYTES
                store_async(there[0] + offset, values, there[1])

    @cute.jit
    def _own_strip(self, dealt: cutlass.Constexpr, accs: Any, strips: Any, place: Any):
        """This CTA's sums of the octets that it owns."""
        for owner in cutlass.range_constexpr(self.split_k):
            if place["rank"] == owner:
                first, count = dealt.of(owner)
                for acc, strip in zip(accs, strips, strict=True):
                    for i in cutlass.range_constexpr(count):
                        for value in cutlass.range_constexpr(4):
                            at = value % 2, value // 2
                            strip[(*at, i), 0, 0] = acc[(*at, first + i), 0, 0]

    @cute.jit
    def add_sums(
        self, lay: StagedLayouts, dealt: cutlass.Constexpr, strips: Any, buffers: Any, thread: Int32
    ):
        """Of the other CTAs to ``strips``, when they are here."""
        cute.arch.mbarrier_wait(buffers[SUMS_FULL].iterator, 0)
        base = buffers[WEIGHTS].iterator.toint()
        for b in cutlass.range_constexpr(self.config.row_blocks):
            for i in cutlass.range_constexpr(dealt.most):
                for behind in cutlass.range_constexpr(self.split_k - 1):
                    offset = cute.crd2idx((0, thread, b, i, behind), lay.sums) * WORD_BYTES
                    piece = load_shared_f32(base + offset)
                    for value in cutlass.range_constexpr(4):
                        at = (value % 2, value // 2, i), 0, 0
                        strips[b][at] = strips[b][at] + piece[value]

    # -- results --------------------------------------------------------------------------------------------------

    def _row(self, thread: Any, group: Any, block: int) -> Any:
        """First of this lane's two rows of the tile in a row block; the other is eight further."""
        blocks = (group * self.config.row_blocks + block) * MMA_ROWS
        return blocks + thread % GROUP_THREADS // 32 * WARP_ROWS + cute.arch.lane_idx() // QUAD

    @cute.jit
    def _store(
        self,
        lay: StagedLayouts,
        place: Any,
        strips: Any,
        y: Any,
        m: Int32,
        n: Int32,
        buffers: Any,
        thread: Int32,
        group: Int32,
    ):
        """``sum * wcscale + bias`` and its activation in fp32, one rounding. A lane has two neighbours of a row."""
        first, count = lay.strips.of_rank(place["rank"])
        step, most = lay.strips.unit, lay.strips.most
        affine = buffers[AFFINE].iterator.toint()
        columns = n // step
        column = (place["column_tile"] * lay.columns + first * OCTET) // step
        for begin in cutlass.range_constexpr(0, most, QUAD * step):
            octets = range(begin, min(begin + QUAD * step, most), step)
            vectors = [
                [
                    tuple(
                        load_shared(affine + (which * lay.columns + within) * WORD_BYTES, 2)
                        for which in range(2)
                    )
                    for o in range(step)
                    for within in ((first + i + o) * OCTET + cute.arch.lane_idx() % QUAD * 2,)
                ]
                for i in octets
            ]
            for b in cutlass.range_constexpr(self.config.row_blocks):
                row = place["row_tile"] * lay.rows + self._row(thread, group, b)
                for half in cutlass.range_constexpr(2):
                    words = [
                        self._finished(
                            lay,
                            [[strips[b][(e, half, i + o), 0, 0] for e in range(2)] for o in range(step)],
                            of_octet,
                        )
                        for i, of_octet in zip(octets, vectors, strict=True)
                    ]
                    own = row + half * 8
                    inside = (column, count // step, columns), begin // step
                    self._store_row(words, y.toint() + Int64(own) * columns * HALF_BYTES, inside, own < m)

    @staticmethod
    def _finished(lay: StagedLayouts, values: Any, vectors: Any) -> Any:
        if lay.gated:
            return finish_gated_pair(*values, *vectors, lay.is_bf16)
        return finish_pair(*values[0], *vectors[0], lay.is_bf16, lay.activation)

    @cute.jit
    def _store_down(
        self,
        lay: StagedLayouts,
        place: Any,
        strips: Any,
        lora_act_in: Any,
        m: Int32,
        thread: Int32,
        group: Int32,
    ):
        """One rounding. A lane has two neighbours of a row of lora_act_in."""
        first, count = lay.down_strips.of_rank(place["rank"])
        column = place["column_tile"] * lay.down_columns + first * OCTET
        most = lay.down_strips.most
        for begin in cutlass.range_constexpr(0, most, QUAD):
            octets = range(begin, min(begin + QUAD, most))
            for b in cutlass.range_constexpr(self.config.row_blocks):
                row = place["row_tile"] * lay.rows + self._row(thread, group, b)
                for half in cutlass.range_constexpr(2):
                    words = [
                        round_pair(*(strips[b][(e, half, i), 0, 0] for e in range(2)), is_bf16=lay.is_bf16)
                        for i in octets
                    ]
                    own = row + half * 8
                    inside = (column, count, Int32(lay.r)), begin
                    target = lora_act_in.toint() + Int64(own) * (lay.r * HALF_BYTES)
                    self._store_row(words, target, inside, own < m)

    @staticmethod
    def _store_row(words: list[Any], row: Any, inside: Any, exists: Any) -> None:
        """``words`` of up to four octets of a row in four lanes, 16 bytes a lane. ``inside``: the strip's first column,
        its octets and how many columns there are; which octet of it is the first.
        """
        (column, count, columns), begin = inside
        own = begin + cute.arch.lane_idx() % QUAD
        made = transposed([*words, *[Uint32(0)] * (QUAD - len(words))])
        wanted = Int32(exists) & Int32(own < count) & Int32(column + own * OCTET < columns)
        store_if(row + Int64(column + own * OCTET) * HALF_BYTES, made, wanted)


def transposed(words: Any) -> list[Any]:
    """Four words of each lane of a quad: word j of lane i for word i of lane j."""
    lane = cute.arch.lane_idx()
    odd, upper = lane & 1, lane >> 1 & 1
    a, b = exchanged(words[0], words[1], odd, 1)
    c, d = exchanged(words[2], words[3], odd, 1)
    first, third = exchanged(a, c, upper, 2)
    second, fourth = exchanged(b, d, upper, 2)
    return [first, second, third, fourth]
