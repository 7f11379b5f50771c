"""From sums to results: those of the cluster's CTAs are added, the low-rank branch beside them, and stored.

1. Every multiplying warp is done with the rings of x and weights, of its own CTA and of those with the same tile, which
   tell one another.
2. A thread sends each vector of four sums (``st.async``) to the CTA that owns its octet of columns, itself included.
   There they lie where weights have been, at the place of the sender's rank and of the thread, and the owner's barrier
   counts bytes.
3. Meanwhile it multiplies the low-rank branch of its strip, by ``mma.sync``: lora_act_in, which the warp that loads x
   has copied behind it, and rows of lora_up, which are there from the start. A lane has eight neighbours of 32 of R of
   both: a sum over R may be taken in any order.
4. The same thread of the owner adds the vectors of all ranks, in their order: bits are those of any launch.

No CTA waits for one that may not run, for clusters start whole; nobody touches the shared memory of a CTA that has got
all of its bytes, so it ends without a barrier.
"""

from typing import Any

import cutlass
from cutlass import Int32, Int64, cute

from kernel_space.operators.nvfp4_quantize.parts.ptx import store_if, unless_zero
from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import (
    finish_gated_pair,
    finish_pair,
    load_acquire,
    load_shared,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import MMA_ROWS, WARP_ROWS
from kernel_space.operators.svdquant_gemm.sm90a_parts.split_k import ALL_BARRIER, GROUP_THREADS
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.ptx import (
    copy_async,
    load_shared_f32,
    map_to_rank,
    mma_16x8x16,
    store_async,
)
from kernel_space.operators.svdquant_linear_16bit.fused.ptx import copy_bulk, fence_proxies
from kernel_space.operators.svdquant_linear_16bit.staged.config import OCTET
from kernel_space.operators.svdquant_linear_16bit.staged.layouts import (
    ACTS,
    AFFINE,
    BRANCH_FULL,
    HALF_BYTES,
    HALVES,
    PEERS_DONE,
    SUMS_FULL,
    UNIT_R,
    UPS,
    WEIGHTS,
    WORD_BYTES,
    StagedLayouts,
    X,
)
from kernel_space.operators.svdquant_linear_16bit.staged.strips import Strips
from kernel_space.operators.svdquant_linear_16bit.whole.ptx import rest, round_pair

VECTOR_BYTES = 16
PIECE = 8  # neighbours along R of a lane
PIECE_BYTES = PIECE * HALF_BYTES
UNITS_AT_ONCE = 4  # of 32 of R, of which rows of lora_act_in are on their way to registers together


class Finish:
    """Mixin with what multiplying warps do before and after their loop, and the warp that loads x beside it."""

    config: Any
    split_k: int
    has_lora: bool
    counters = 2  # of a tile of rows of x: CTAs that are ready, and that have seen it
    quantizes: bool

    # -- the warp that loads x ------------------------------------------------------------------------------------

    def _acts(self, lay: StagedLayouts, place: Any, buffers: Any) -> Any:
        """Where rows of lora_act_in lie: in the slot after the last of x, if they are no wider."""
        if not lay.acts_in_slot:
            return buffers[ACTS].iterator.toint()
        slot = place["slots"] % self.config.num_x_stage
        return buffers[X].iterator.toint() + slot * (HALVES * lay.x_bytes)

    @cute.jit
    def load_acts(self, lay: StagedLayouts, place: Any, buffers: Any, m: Int32):
        """Waits until all CTAs of the low-rank branch have written theirs; copies lora_act_in of the tile's rows."""
        writers = lay.down_tiles * self.split_k
        ready = load_acquire(place["ready"].toint())
        while ready < writers:
            rest()
            ready = load_acquire(place["ready"].toint())
        # Written by ordinary stores, read by a bulk copy.
        fence_proxies()
        first = place["row_tile"] * lay.rows
        size = cutlass.min(m - first, Int32(lay.rows)) * (lay.r * HALF_BYTES)
        barrier = buffers[BRANCH_FULL].iterator
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, size)
            source = place["lora_act_in"] + Int64(first) * (lay.r * HALF_BYTES)
            copy_bulk(self._acts(lay, place, buffers), source, size, barrier.toint())
        if cutlass.const_expr(not self.quantizes):
            if cute.arch.lane_idx() == 0:
                self._take(lay, place)

    @cute.jit
    def _take(self, lay: StagedLayouts, place: Any):
        """This CTA has seen all that it waits for; the last one sets the counters of its tile of rows to 0."""
        _, tiles, _ = cute.arch.grid_dim()
        before = cute.arch.atomic_add(place["ready"] + 1, Int32(1), sem="acq_rel", scope="gpu")
        if before == (tiles - lay.down_tiles) * self.split_k - 1:
            counters = cute.make_tensor(place["ready"], cute.make_layout(self.counters))
            for i in cutlass.range_constexpr(self.counters):
                counters[i] = Int32(0)

    # -- multiplying warps ----------------------------------------------------------------------------------------

    def _thread(self) -> tuple[Any, Any]:
        """This thread among all that multiply, and its warpgroup."""
        tidx, _, _ = cute.arch.thread_idx()
        thread = tidx - GROUP_THREADS * (1 + self.config.num_dequant_warpgroups)
        return thread, cute.arch.make_warp_uniform(thread // GROUP_THREADS)

    @cute.jit
    def up_consumers(self, place: Any, y: Any, weights: Any, m: Int32, n: Int32, buffers: Any):
        """A tile of y, or this CTA's part of it along K."""
        lay = self._layouts()
        thread, group = self._thread()
        wcscale, bias, lora_up = weights
        first, count = lay.strips.of_rank(place["rank"])
        self._copy_vectors(lay, place, (wcscale, bias), n, buffers, thread)
        if cutlass.const_expr(self.has_lora):
            self._copy_ups(lay, place, lora_up, (first, count), n, buffers, thread)
        if cutlass.const_expr(self.quantizes):
            self.quantize_others(lay, place, buffers, m, thread)
        cute.arch.cp_async_wait_group(0)
        cute.arch.barrier(barrier_id=ALL_BARRIER, number_of_threads=32 * lay.multiplying_warps)
        accs = self.zeros(lay.columns)
        self.multiply_weights(place, accs, buffers, group)
        strips = accs
        if cutlass.const_expr(self.split_k > 1):
            self.send_sums(lay, lay.strips, accs, buffers, place, thread)
            strips = self._make_strips(lay.strips)
        if cutlass.const_expr(self.has_lora):
            self._add_branch(lay, place, strips, buffers, thread, group)
        if cutlass.const_expr(self.split_k > 1):
            self.add_sums(lay, lay.strips, strips, buffers, thread)
        if cutlass.const_expr(self.quantizes):
            # These warps have looked at a counter, too, and none of the CTA does any more.
            if thread == 0:
                self._take(lay, place)
        self._store(lay, place, strips, (first, count), y, m, n, buffers, thread, group)

    @cute.jit
    def down_consumers(self, place: Any, lora_act_in: Any, m: Int32, buffers: Any):
        """A tile of lora_act_in: multiply, add up, store and say so."""
        lay = self._layouts()
        thread, group = self._thread()
        accs = self.zeros(lay.down_columns)
        self.multiply_down(place, accs, buffers, group)
        strips = accs
        if cutlass.const_expr(self.split_k > 1):
            self.send_sums(lay, lay.down_strips, accs, buffers, place, thread)
            strips = self._make_strips(lay.down_strips)
            self.add_sums(lay, lay.down_strips, strips, buffers, thread)
        self._store_down(lay, place, strips, lora_act_in, m, thread, group)
        # They are read by bulk copies.
        fence_proxies()
        # All of the CTA's stores are part of what one thread releases.
        cute.arch.barrier(barrier_id=ALL_BARRIER, number_of_threads=32 * lay.multiplying_warps)
        if thread == 0:
            cute.arch.atomic_add(place["ready"], Int32(1), sem="release", scope="gpu")

    # -- what comes from the start --------------------------------------------------------------------------------

    @cute.jit
    def _copy_vectors(
        self, lay: StagedLayouts, place: Any, vectors: Any, n: Int32, buffers: Any, thread: Int32
    ):
        """wcscale and bias of the tile's columns; zeros beyond N."""
        begin = place["column_tile"] * lay.columns
        pieces = lay.columns // 4
        for which in cutlass.range_constexpr(2):
            for at, inside in self._dealt_out(lay, thread, pieces):
                if inside:
                    source = vectors[which].toint() + Int64(begin + at * 4) * WORD_BYTES
                    target = buffers[AFFINE].iterator.toint() + (which * lay.columns + at * 4) * WORD_BYTES
                    copy_async(target, source, Int32(begin + at * 4 < n) * 16, 16)
        cute.arch.cp_async_commit_group()

    @cute.jit
    def _copy_ups(
        self, lay: StagedLayouts, place: Any, lora_up: Any, strip: Any, n: Int32, buffers: Any, thread: Int32
    ):
        """Rows of lora_up of this CTA's strip; zeros beyond N and R."""
        first, count = strip
        begin = place["column_tile"] * lay.columns + first * OCTET
        end = cutlass.min(n, begin + count * OCTET)
        pieces = lay.branch_units * (UNIT_R // PIECE)  # of a row
        for at, inside in self._dealt_out(lay, thread, lay.strips.most * OCTET * pieces):
            if inside:
                row, piece = at // pieces, at % pieces
                source = lora_up.toint() + (Int64(begin + row) * lay.r + piece * PIECE) * HALF_BYTES
                size = Int32((begin + row < end) & (piece * PIECE < lay.r)) * PIECE_BYTES
                target = buffers[UPS].iterator.toint() + row * lay.branch_pitch + piece * PIECE_BYTES
                copy_async(target, source, size, PIECE_BYTES)
        cute.arch.cp_async_commit_group()

    @staticmethod
    def _dealt_out(lay: StagedLayouts, thread: Any, count: int) -> list[tuple[Any, Any]]:
        """This thread's of ``count`` pieces, and whether there is such a piece. Unrolled: ptxas (13.0) took what a loop
        had made of the number of the thread for that number, where sums are read later; the PTX was right.
        """
        threads = 32 * lay.multiplying_warps
        return [(thread + first, thread + first < count) for first in range(0, count, threads)]

    # -- sums -----------------------------------------------------------------------------------------------------

    def _make_strips(self, dealt: Strips) -> list[Any]:
        """Accumulators of as many octets as the widest strip has; of a narrower one the last will be void."""
        return self.zeros(dealt.most * OCTET)

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
        """To the CTAs that share the tile, each what it owns."""
        arrived = buffers[SUMS_FULL].iterator
        _, count = dealt.of_rank(place["rank"])
        if thread == 0:
            octet = 32 * lay.multiplying_warps * self.config.row_blocks * VECTOR_BYTES * self.split_k
            cute.arch.mbarrier_arrive_and_expect_tx(arrived, count * octet)
        # Others may count at this CTA's barriers, and it at theirs.
        cute.arch.cluster_wait()
        cute.arch.sync_warp()
        lane = cute.arch.lane_idx()
        if lane < self.split_k:
            cute.arch.mbarrier_arrive(buffers[PEERS_DONE].iterator, place["peers"] + lane)
        cute.arch.mbarrier_wait(buffers[PEERS_DONE].iterator, 0)
        self._send(lay, dealt, accs, buffers[WEIGHTS].iterator.toint(), arrived, place, thread)

    def _send(
        self, lay: StagedLayouts, dealt: Strips, accs: Any, base: Any, arrived: Any, place: Any, thread: Any
    ) -> None:
        for owner in range(self.split_k):
            first, count = dealt.of(owner)
            target = map_to_rank(base, place["peers"] + owner)
            barrier = map_to_rank(arrived.toint(), place["peers"] + owner)
            for i in range(count):
                for b, acc in enumerate(accs):
                    values = [acc[(e, half, first + i), 0, 0] for half in range(2) for e in range(2)]
                    offset = cute.crd2idx((0, thread, b, i, place["rank"]), lay.sums) * WORD_BYTES
                    store_async(target + offset, values, barrier)

    @cute.jit
    def add_sums(
        self, lay: StagedLayouts, dealt: cutlass.Constexpr, strips: Any, buffers: Any, thread: Int32
    ):
        """Of all CTAs of the cluster to ``strips``, when they are here."""
        cute.arch.mbarrier_wait(buffers[SUMS_FULL].iterator, 0)
        base = buffers[WEIGHTS].iterator.toint()
        for b in cutlass.range_constexpr(self.config.row_blocks):
            for i in cutlass.range_constexpr(dealt.most):
                for source in cutlass.range_constexpr(self.split_k):
                    offset = cute.crd2idx((0, thread, b, i, source), lay.sums) * WORD_BYTES
                    piece = load_shared_f32(base + offset)
                    for value in cutlass.range_constexpr(4):
                        at = (value % 2, value // 2, i), 0, 0
                        strips[b][at] = strips[b][at] + piece[value]

    # -- the low-rank branch --------------------------------------------------------------------------------------

    def _row(self, thread: Any, group: Any, block: int) -> Any:
        """First of this lane's two rows of the tile in a row block; the other is eight further."""
        blocks = (group * self.config.row_blocks + block) * MMA_ROWS
        return blocks + thread % GROUP_THREADS // 32 * WARP_ROWS + cute.arch.lane_idx() // 4

    @cute.jit
    def _add_branch(
        self,
        lay: StagedLayouts,
        place: Any,
        strips: Any,
        buffers: Any,
        thread: Int32,
        group: Int32,
    ):
        """Of the strip of this CTA."""
        cute.arch.mbarrier_wait(buffers[BRANCH_FULL].iterator, 0)
        acts = self._acts(lay, place, buffers)
        for block in cutlass.range_constexpr(self.config.row_blocks):
            row = self._row(thread, group, block)
            for unit in cutlass.range_constexpr(0, lay.branch_units, UNITS_AT_ONCE):
                units = min(UNITS_AT_ONCE, lay.branch_units - unit)
                self._add_units(lay, strips[block], (buffers, acts), row, range(unit, unit + units))

    def _add_units(self, lay: StagedLayouts, strip: Any, places: Any, row: Any, units: range) -> None:
        lane = cute.arch.lane_idx()
        acts = []
        buffers, begin = places
        for unit in units:
            column = unit * UNIT_R + lane % 4 * PIECE
            for half in range(2):
                inside = Int32(column < lay.r)
                words = load_shared(begin + ((row + half * 8) * lay.r + column * inside) * HALF_BYTES, 4)
                acts.append([unless_zero(inside, word) for word in words])
        for octet in range(cute.size(strip) // 4):
            sums = cute.make_tensor(strip.iterator + 4 * octet, cute.make_layout(4))
            ups = buffers[UPS].iterator.toint() + (octet * OCTET + lane // 4) * lay.branch_pitch
            for i, unit in enumerate(units):
                words = load_shared(ups + unit * (UNIT_R * HALF_BYTES) + lane % 4 * PIECE_BYTES, 4)
                low, high = acts[2 * i], acts[2 * i + 1]
                for half in (0, 2):
                    rows = (low[half], high[half], low[half + 1], high[half + 1])
                    mma_16x8x16(sums, rows, words[half : half + 2], lay.is_bf16)

    # -- results --------------------------------------------------------------------------------------------------

    @cute.jit
    def _store(
        self,
        lay: StagedLayouts,
        place: Any,
        strips: Any,
        strip: Any,
        y: Any,
        m: Int32,
        n: Int32,
        buffers: Any,
        thread: Int32,
        group: Int32,
    ):
        """``sum * wcscale + bias`` and its activation in fp32, one rounding. A lane has two neighbours of a row."""
        first, count = strip
        lane = cute.arch.lane_idx()
        tile = place["column_tile"] * lay.columns
        affine = buffers[AFFINE].iterator.toint()
        step = 2 if cutlass.const_expr(lay.gated) else 1
        pitch = n // step
        for b in cutlass.range_constexpr(self.config.row_blocks):
            row = place["row_tile"] * lay.rows + self._row(thread, group, b)
            for i in cutlass.range_constexpr(0, lay.strips.most, step):
                within = (first + i) * OCTET + lane % 4 * 2
                vectors = [
                    tuple(
                        load_shared(affine + (which * lay.columns + within + o * OCTET) * WORD_BYTES, 2)
                        for which in range(2)
                    )
                    for o in range(step)
                ]
                exists = Int32(i < count) & Int32(tile + within < n)
                column = (tile + (first + i) * OCTET) // step + lane % 4 * 2
                for half in cutlass.range_constexpr(2):
                    values = [[strips[b][(e, half, i + o), 0, 0] for e in range(2)] for o in range(step)]
                    word = self._finished(lay, values, vectors)
                    own = row + half * 8
                    address = y.toint() + (Int64(own) * pitch + column) * HALF_BYTES
                    store_if(address, [word], exists & Int32(own < m))

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
        begin = place["column_tile"] * lay.down_columns + first * OCTET + cute.arch.lane_idx() % 4 * 2
        for b in cutlass.range_constexpr(self.config.row_blocks):
            row = place["row_tile"] * lay.rows + self._row(thread, group, b)
            for i in cutlass.range_constexpr(lay.down_strips.most):
                column = begin + i * OCTET
                for half in cutlass.range_constexpr(2):
                    low, high = strips[b][(0, half, i), 0, 0], strips[b][(1, half, i), 0, 0]
                    word = round_pair(low, high, is_bf16=lay.is_bf16)
                    own = row + half * 8
                    exists = Int32(i < count) & Int32(column < lay.r) & Int32(own < m)
                    address = lora_act_in.toint() + (Int64(own) * lay.r + column) * HALF_BYTES
                    store_if(address, [word], exists)
