"""Dequantizing warps of the small-M wgmma kernel of sm_90a: packed columns in shared memory -> fp16, where wgmma reads.

A thread takes half a unit (64 of K) of a row: 32 bytes of codes and four scale factors, side by side. Quarter t of
the 64 belongs to lane t of a quad of consumers (the order of K is free as long as both operands share it), so chunk
4w + i of a swizzled row of 128 bytes is pair i of the words w of all quarters: one 16-byte store. The columns come
through shared memory, not through registers ahead of time: the fence before wgmma may read would wait for loads in
flight (1.2 us at M = 64 on an H200).
"""

from typing import Any

import cutlass
import cutlass.pipeline as pipeline
from cutlass import Int32, Uint32, cute

from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import (
    broadcast_factor,
    load_shared,
    scale_pairs,
    store_shared,
    unpack_pairs,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import (
    SF_BLOCK_BYTES,
    SF_BLOCK_ROWS,
    WARPS_PER_GROUP,
)
from kernel_space.operators.svdquant_gemm.sm90a_small_m.layouts_wgmma import (
    HALVES,
    ROW_BYTES,
    LayoutsSmallMWgmma,
)

GROUP_THREADS = 128
DQ_ROW_BYTES = 128
QUARTERS = 4
PIECES = 2  # of 16 bytes: codes of half a unit of a row


class SmallMColumns:
    """Mixin with the dequantizing role: of act, or of weights."""

    @cute.jit
    def dequant_act(self, lay: LayoutsSmallMWgmma, place: Any):
        """Act -> dq ring, all units of this CTA but the first, which consumers dequantize."""
        packed = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, lay.stages)
        ring = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, lay.dq_stages)
        for _ in cutlass.range_constexpr(lay.helpers):
            packed.advance()
            ring.advance()
        thread = place["thread"] - GROUP_THREADS
        for i in cutlass.range(lay.helpers, place["count"], unroll=1):
            # Loads may land out of order: a wait for a slot's second load would pass before its first one is there.
            # Consumers have waited for that, and may be a whole lap ahead of a wait here: so it is their unit, not its
            # load, that this warp comes behind, in the dq slot that it fills again or, in a longer ring, one before.
            cute.arch.mbarrier_wait(place["dq_empty"] + ring.index, ring.phase)
            if cutlass.const_expr(lay.dq_stages > lay.stages):
                first = i - lay.stages
                if (first >= 0) & (first < lay.helpers):
                    cute.arch.mbarrier_wait(place["dq_full"] + first, 0)
            cute.arch.mbarrier_wait(place["columns_full"] + packed.index, packed.phase)
            self._store_unit(lay, place, i, packed.index, ring.index, thread)
            packed.advance()
            ring.advance()

    @cute.jit
    def help_dequant(self, lay: LayoutsSmallMWgmma, place: Any):
        """Consumer warpgroup g dequantizes unit g: they have nothing to multiply before act is there."""
        unit = place["consumer_warp"] // WARPS_PER_GROUP
        if unit < cutlass.min(place["count"], Int32(lay.helpers)):
            cute.arch.mbarrier_wait(place["columns_full"] + unit, 0)
            self._store_unit(lay, place, unit, unit, unit, place["thread"] % GROUP_THREADS)

    @cute.jit
    def dequant_weights(self, lay: LayoutsSmallMWgmma, place: Any):
        """Weights -> dq ring. Where a slot holds half a unit, of two warpgroups each fills every second slot; else both
        fill all of them. A barrier counts all warps: who fills a slot alone arrives for the others too.
        """
        if cutlass.const_expr(lay.splits > 1):
            cute.arch.cluster_wait()  # every CTA of the cluster has its barriers
        packed = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, lay.stages)
        ring = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, lay.dq_stages)
        thread = place["thread"] - GROUP_THREADS
        group = cute.arch.make_warp_uniform(thread // GROUP_THREADS)
        if cutlass.const_expr(lay.r > 0):
            for _ in cutlass.range(place["lora_count"], unroll=1):
                cute.arch.mbarrier_wait(place["columns_full"] + packed.index, packed.phase)
                cute.arch.mbarrier_wait(place["dq_empty"] + ring.index, ring.phase)
                for share in cutlass.range_constexpr(HALVES // lay.dequant_groups):
                    self._store_lora(
                        lay, place, packed.index, ring.index, thread % GROUP_THREADS, group + share
                    )
                self._stored([(place["dq_full"] + ring.index, 1), (place["columns_empty"] + packed.index, 1)])
                packed.advance()
                ring.advance()
        if cutlass.const_expr(lay.teams == 2):
            thread = thread % GROUP_THREADS
            if group == 1:
                ring.advance()
        self.dequant_units(lay, place, packed, ring, thread, group)
        self._ring_is_free(lay, place)

    @cute.jit
    def dequant_units(
        self, lay: LayoutsSmallMWgmma, place: Any, packed: Any, ring: Any, thread: Int32, team: Int32
    ):
        """All units of K by a team of warps, a piece at a time: half a unit of a row for each thread, which is read
        before its slot is free.
        """
        team_threads = GROUP_THREADS * lay.dequant_groups // lay.teams
        slot_pieces = -(-lay.slot_halves * lay.columns // team_threads)
        pieces = HALVES // lay.slot_halves // lay.teams * slot_pieces
        places = [self._piece(lay, piece, slot_pieces, team_threads, thread, team) for piece in range(pieces)]
        words = cute.make_rmem_tensor((4 * PIECES + 1,), Uint32)
        for _ in cutlass.range(place["k_count"], unroll=1):
            cute.arch.mbarrier_wait(place["columns_full"] + packed.index, packed.phase)
            for piece in cutlass.range_constexpr(pieces):
                self._read_piece(lay, place, packed.index, places[piece], words)
                if cutlass.const_expr(piece % slot_pieces == 0):
                    cute.arch.mbarrier_wait(place["dq_empty"] + ring.index, ring.phase)
                self._store_piece(lay, place, ring.index, places[piece], words)
                arrivals = []
                if cutlass.const_expr(piece % slot_pieces == slot_pieces - 1):
                    arrivals.append((place["dq_full"] + ring.index, lay.teams))
                if cutlass.const_expr(piece == pieces - 1):
                    arrivals.append((place["columns_empty"] + packed.index, 1))
                self._stored(arrivals)
                if cutlass.const_expr(piece % slot_pieces == slot_pieces - 1):
                    for _ in cutlass.range_constexpr(lay.teams):
                        ring.advance()
            packed.advance()

    @staticmethod
    def _piece(
        lay: LayoutsSmallMWgmma, piece: int, slot_pieces: int, team_threads: int, thread: Any, team: Any
    ) -> tuple[Any, Any, Any, Any]:
        """(whether there is one, row, half of the unit, half of the slot) of this thread's piece of a unit."""
        task = thread + piece % slot_pieces * team_threads
        exists = task < lay.slot_halves * lay.columns
        if lay.slot_halves > 1:
            half = task // lay.columns
            return exists, task - half * lay.columns, half, half
        return exists, task, team if lay.teams > 1 else Int32(piece // slot_pieces), Int32(0)

    @cute.jit
    def _read_piece(self, lay: LayoutsSmallMWgmma, place: Any, packed: Int32, piece: Any, words: Any):
        """Codes and scale factors of a piece."""
        exists, row, half, _ = piece
        if exists:
            source, _ = self._rows_of(lay, place, packed, Int32(0), row)
            for chunk in cutlass.range_constexpr(PIECES):
                loaded = load_shared(source + (((half * PIECES + chunk) ^ (row >> 1 & 3)) << 4), 4)
                for w in cutlass.range_constexpr(4):
                    words[4 * chunk + w] = loaded[w]
            words[4 * PIECES] = load_shared(self._scales_of(lay, place, packed, row, half), 1)[0]

    @cute.jit
    def _store_piece(self, lay: LayoutsSmallMWgmma, place: Any, slot: Int32, piece: Any, words: Any):
        """A piece, dequantized, to its slot."""
        exists, row, _, in_slot = piece
        if exists:
            _, target = self._rows_of(lay, place, Int32(0), slot, row)
            codes = [[words[4 * chunk + w] for w in range(4)] for chunk in range(PIECES)]
            self._store_half(codes, words[4 * PIECES], target + in_slot * lay.half_bytes, row % 8)

    @staticmethod
    def _scales_of(lay: LayoutsSmallMWgmma, place: Any, packed: Int32, row: Int32, half: Int32) -> Any:
        """Address of the four scale factors of half a unit of a row."""
        block_row = place["first_column"] % SF_BLOCK_ROWS + row
        scale = place["column scales"] + packed * lay.column_ring.scale_bytes + half * SF_BLOCK_BYTES
        if lay.column_ring.row_blocks > 1:
            scale = scale + block_row // SF_BLOCK_ROWS * (lay.sf_k_blocks * SF_BLOCK_BYTES)
            block_row = block_row % SF_BLOCK_ROWS
        return scale + block_row % 32 * 16 + block_row // 32 * 4

    @staticmethod
    def _stored(barriers: Any) -> None:
        """Arrive for this warp: what it wrote before wgmma reads it, what it read before TMA overwrites it."""
        if not barriers:
            return
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            for barrier, arrivals in barriers:
                cute.arch.mbarrier_arrive(barrier, arrive_count=arrivals)

    @cute.jit
    def _store_unit(
        self, lay: LayoutsSmallMWgmma, place: Any, i: Int32, packed: Int32, slot: Int32, thread: Int32
    ):
        """Unit ``i``, by one warpgroup: packed slot -> slot of the dq ring, dequantized, or as it is for LoRA."""
        if i < place["lora_count"]:
            if cutlass.const_expr(lay.r > 0):
                for share in cutlass.range_constexpr(HALVES):
                    self._store_lora(lay, place, packed, slot, thread, share)
        else:
            count = -(-HALVES * lay.columns // GROUP_THREADS)
            words = cute.make_rmem_tensor((4 * PIECES + 1,), Uint32)
            for index in cutlass.range_constexpr(count):
                piece = self._piece(lay, index, count, GROUP_THREADS, thread, Int32(0))
                self._read_piece(lay, place, packed, piece, words)
                self._store_piece(lay, place, slot, piece, words)
        self._stored([(place["dq_full"] + slot, 1), (place["columns_empty"] + packed, 1)])

    @cute.jit
    def _store_lora(
        self, lay: LayoutsSmallMWgmma, place: Any, packed: Int32, slot: Int32, thread: Int32, share: Int32
    ):
        """Half ``share`` of the bytes of a LoRA unit's rows, as they are, by one warpgroup."""
        for first in cutlass.range_constexpr(0, lay.columns, GROUP_THREADS):
            row = thread + first
            if row < lay.columns:
                source, target = self._rows_of(lay, place, packed, slot, row)
                for piece in cutlass.range_constexpr(PIECES):
                    chunk = share * PIECES + piece
                    words = load_shared(source + ((chunk ^ (row >> 1 & 3)) << 4), 4)
                    store_shared(target + ((chunk ^ row % 8) << 4), words)

    @staticmethod
    def _rows_of(lay: LayoutsSmallMWgmma, place: Any, packed: Int32, slot: Int32, row: Int32) -> Any:
        """Addresses of a row: packed, and in the first half of a dq slot."""
        source = place["columns"] + packed * lay.column_ring.bytes + row * ROW_BYTES
        target = place["dq_address"] + slot * (lay.slot_halves * lay.half_bytes) + row * DQ_ROW_BYTES
        return source, target

    @staticmethod
    def _store_half(words: Any, scales: Any, target: Any, swizzle: Any) -> None:
        """64 elements of K of one row: eight words and four scale factors -> 128 swizzled bytes."""
        pairs_of_factors = scale_pairs(scales)
        factors = [broadcast_factor(pairs_of_factors[t // 2], t % 2) for t in range(QUARTERS)]
        for w in range(2):
            for odd in range(2):
                pairs = [
                    unpack_pairs(words[t // 2][t % 2 * 2 + w], factors[t], odd, pinned=True)
                    for t in range(QUARTERS)
                ]
                for pair in range(2):
                    chunk = 4 * w + 2 * odd + pair
                    store_shared(target + ((chunk ^ swizzle) << 4), [quarter[pair] for quarter in pairs])
