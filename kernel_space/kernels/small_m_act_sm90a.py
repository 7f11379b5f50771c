"""Act warps of the small-M wgmma kernel of sm_90a: packed act in shared memory -> dequantized, where wgmma reads it.

A thread takes half a unit (64 of K) of a row: 32 bytes of codes and four scale factors, side by side. Quarter t of
the 64 belongs to lane t of a quad of consumers (the order of K is free as long as both operands share it), so chunk
4w + i of a swizzled row of 128 bytes is pair i of the words w of all quarters: one 16-byte store. Packed act comes
through shared memory, not through registers ahead of time: the fence before wgmma may read would wait for loads in
flight (1.2 us at M = 64 on an H200).
"""

from typing import Any

import cutlass
import cutlass.pipeline as pipeline
from cutlass import Int32, cute

from kernel_space.kernels.dequant_sm90a import load_shared, scale_pairs, store_shared, unpack_half
from kernel_space.kernels.layouts_sm90a import SF_BLOCK_BYTES, WARPS_PER_GROUP
from kernel_space.kernels.layouts_small_m_wgmma_sm90a import HALVES, ROW_BYTES, LayoutsSmallMWgmma

ROWS_AT_ONCE = 64  # threads of the act warps over the halves of a unit
DQ_ROW_BYTES = 128
ACT_THREADS = 128
QUARTERS = 4
PIECES = 2  # of 16 bytes


class SmallMAct:
    """Mixin with the act role."""

    @cute.jit
    def act_warps(self, lay: LayoutsSmallMWgmma, place: Any):
        """Packed ring -> act ring, all units of this CTA but the first, which consumers dequantize."""
        packed = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, lay.stages)
        ring = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, lay.dq_stages)
        for unit in cutlass.range_constexpr(lay.helpers):
            # Loads may land out of order: a wait for a slot's second load would pass before its first one is there.
            if unit < place["count"]:
                cute.arch.mbarrier_wait(place["packed_full"] + unit, 0)
            packed.advance()
            ring.advance()
        for i in cutlass.range(lay.helpers, place["count"], unroll=1):
            cute.arch.mbarrier_wait(place["packed_full"] + packed.index, packed.phase)
            cute.arch.mbarrier_wait(place["act_empty"] + ring.index, ring.phase)
            self._store_act(lay, place, i, packed.index, ring.index)
            self._act_stored(place, packed.index, ring.index)
            packed.advance()
            ring.advance()

    @cute.jit
    def help_act(self, lay: LayoutsSmallMWgmma, place: Any):
        """Consumer warpgroup g dequantizes unit g: they have nothing to multiply before act is there."""
        unit = place["consumer_warp"] // WARPS_PER_GROUP
        if unit < cutlass.min(place["count"], Int32(lay.helpers)):
            cute.arch.mbarrier_wait(place["packed_full"] + unit, 0)
            self._store_act(lay, place, unit, unit, unit)
            self._act_stored(place, unit, unit)

    @staticmethod
    def _act_stored(place: Any, packed: Int32, slot: Int32) -> None:
        """What this warp wrote before wgmma reads it, what it read before TMA overwrites it."""
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(place["act_full"] + slot)
            cute.arch.mbarrier_arrive(place["packed_empty"] + packed)

    @cute.jit
    def _store_act(self, lay: LayoutsSmallMWgmma, place: Any, i: Int32, packed: Int32, slot: Int32):
        """Unit ``i``: packed slot -> slot of the act ring, dequantized, or as it is for LoRA."""
        thread = place["thread"] % ACT_THREADS
        half, first = thread // ROWS_AT_ONCE, thread % ROWS_AT_ONCE
        swizzle = first % 8
        for index in cutlass.range_constexpr(-(-lay.columns // ROWS_AT_ONCE)):
            row = first + index * ROWS_AT_ONCE
            source = place["packed act"] + packed * lay.packed_act.bytes + row * ROW_BYTES
            target = place["dq_address"] + slot * (HALVES * lay.half_bytes) + row * DQ_ROW_BYTES
            is_row = True
            if cutlass.const_expr(lay.columns % ROWS_AT_ONCE != 0):
                is_row = row < lay.columns
            if is_row:
                words = [
                    load_shared(source + (((half * PIECES + piece) ^ (first >> 1 & 3)) << 4), 4)
                    for piece in range(PIECES)
                ]
                if i < place["lora_count"]:
                    if cutlass.const_expr(lay.r > 0):
                        for piece in cutlass.range_constexpr(PIECES):
                            chunk = half * PIECES + piece
                            store_shared(target + ((chunk ^ swizzle) << 4), words[piece])
                else:
                    # A tile begins at a multiple of its columns, which divide or are 128.
                    block_row = place["first_row"] % 128 + row
                    scale = place["act scales"] + packed * lay.packed_act.scale_bytes + half * SF_BLOCK_BYTES
                    scale = scale + block_row % 32 * 16 + block_row // 32 * 4
                    self._store_half(words, load_shared(scale, 1)[0], target + half * lay.half_bytes, swizzle)

    @staticmethod
    def _store_half(words: Any, scales: Any, target: Any, swizzle: Any) -> None:
        """64 elements of K of one row: eight words and four scale factors -> 128 swizzled bytes."""
        factors = scale_pairs(scales)
        for w in range(2):
            for odd in range(2):
                pairs = [
                    unpack_half(words[t // 2][t % 2 * 2 + w], factors[t // 2], t % 2, odd)
                    for t in range(QUARTERS)
                ]
                for pair in range(2):
                    chunk = 4 * w + 2 * odd + pair
                    store_shared(target + ((chunk ^ swizzle) << 4), [quarter[pair] for quarter in pairs])
