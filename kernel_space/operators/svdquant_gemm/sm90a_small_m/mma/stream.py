"""Streaming half of the small-M kernel of sm_90a: every warp copies its units ahead and walks through them.

How a unit is multiplied is in ``sm90a_small_m/sync.py``.
"""

from typing import Any

import cutlass
from cutlass import Int32, Int64, cute

from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import (
    DEQUANT_SHIFT,
    load_shared,
    scale_pair,
    unpack_word,
)
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.layouts import (
    LORA_UNIT_K,
    OCTETS,
    PIECE,
    UNIT_K,
    WORD,
    LayoutsSmallM,
)
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.ptx import copy_async

TO_VALUES = 2.0 ** (2 * DEQUANT_SHIFT)  # what products of two dequantized operands lack
SCALE_BLOCK = 512  # bytes of 128 rows x 64 K
QUARTER_K = UNIT_K // 4  # K elements of one lane of a quad in a unit
QUARTER_R = LORA_UNIT_K // 4


class SmallMStream:
    """Mixin with the copies and the main loop. ``place`` holds what a lane knows of where it is (see ``_place``)."""

    @cute.jit
    def stream(self, lay: LayoutsSmallM, place: Any, accs: Any):
        """Add this warp's units to ``accs``: those of K, then LoRA units.

        With PDL weights are copied before the previous kernel is known to have ended, all else after.
        """
        count = place["k_count"] + place["lora_count"]
        if cutlass.const_expr(self.config.use_pdl):
            for i in cutlass.range(lay.stages, unroll=1):
                if i < count:
                    self._copy_weights(lay, place, i, place["ring"] + i * lay.slot_bytes)
            self._copy_affine(lay, place)
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
            for i in cutlass.range(lay.stages, unroll=1):
                if i < count:
                    self._copy_act(lay, place, i, place["ring"] + i * lay.slot_bytes)
                cute.arch.cp_async_commit_group()
        else:
            for i in cutlass.range(lay.stages, unroll=1):
                if i < count:
                    self._copy_weights(lay, place, i, place["ring"] + i * lay.slot_bytes)
                    self._copy_act(lay, place, i, place["ring"] + i * lay.slot_bytes)
                cute.arch.cp_async_commit_group()
            self._copy_affine(lay, place)
        slot = Int32(0)
        for i in cutlass.range(place["k_count"], unroll=1):
            cute.arch.cp_async_wait_group(lay.stages - 1)
            address = place["ring"] + slot * lay.slot_bytes
            self.multiply(lay, place, i, address, accs)
            slot = self._refill(lay, place, i, slot)
        for acc in accs:
            for e in cutlass.range_constexpr(cute.size(acc)):
                acc[e] = acc[e] * TO_VALUES
        if cutlass.const_expr(lay.lora_units > 0):
            for i in cutlass.range(place["k_count"], count, unroll=1):
                cute.arch.cp_async_wait_group(lay.stages - 1)
                address = place["ring"] + slot * lay.slot_bytes
                self.multiply_lora(lay, place, i, address, accs)
                slot = self._refill(lay, place, i, slot)
        cute.arch.cp_async_wait_group(0)

    @cute.jit
    def _refill(self, lay: LayoutsSmallM, place: Any, i: Int32, slot: Int32):
        """Copy the unit ``num_ab_stage`` ahead into the slot that was just used up; the next slot."""
        address = place["ring"] + slot * lay.slot_bytes
        if i + lay.stages < place["k_count"] + place["lora_count"]:
            self._copy_weights(lay, place, i + lay.stages, address)
            self._copy_act(lay, place, i + lay.stages, address)
        cute.arch.cp_async_commit_group()
        following = slot + 1
        if following == lay.stages:
            following = Int32(0)
        return following

    # ------------------------------------------------------------ copies

    @cute.jit
    def _copy_weights(self, lay: LayoutsSmallM, place: Any, i: Int32, slot: Int32):
        """This lane's pieces of unit ``i`` of the warp: weights with their scale factors, or lora_up.

        ``left`` is positive where there is something along K or R, then 16 or more.
        """
        tile = place["k_begin"] + i
        left = place["k"] - tile * UNIT_K - place["quarter"] * QUARTER_K
        source, step = place["wgt"] + Int64(tile * (UNIT_K // 2)), place["wgt_step"]
        block = tile * 2 + place["quarter"] // 2
        blocks_left = place["k_blocks"] - block
        if cutlass.const_expr(lay.lora_units > 0):
            if i >= place["k_count"]:
                unit = place["lora_begin"] + i - place["k_count"]
                left = (Int32(lay.r) - unit * LORA_UNIT_K - place["quarter"] * QUARTER_R) * 2
                source = place["lora_up"] + Int64(unit * (LORA_UNIT_K * 2))
                step = Int64(32 * lay.r * 2)
                blocks_left = Int32(0)
        left = cutlass.max(left, Int32(0))
        target = slot + place["lane"] * 16
        for octet in cutlass.range_constexpr(OCTETS):
            size = cutlass.min(place["row_sizes"][octet], left)
            copy_async(target + octet * PIECE, source + octet * step, size, 16)
        scales = cutlass.min(exists(blocks_left), place["tile_exists"]) * 16
        copy_async(target + lay.scales_offset, place["wscales"] + Int64(block) * SCALE_BLOCK, scales, 16)

    @cute.jit
    def _copy_act(self, lay: LayoutsSmallM, place: Any, i: Int32, slot: Int32):
        """The same of act, or of lora_act_in."""
        tile = place["k_begin"] + i
        left = place["k"] - tile * UNIT_K - place["quarter"] * QUARTER_K
        source, step = place["act"] + Int64(tile * (UNIT_K // 2)), place["act_step"]
        block = tile * 2 + place["quarter"] // 2
        blocks_left = place["k_blocks"] - block
        if cutlass.const_expr(lay.lora_units > 0):
            if i >= place["k_count"]:
                unit = place["lora_begin"] + i - place["k_count"]
                left = (Int32(lay.r) - unit * LORA_UNIT_K - place["quarter"] * QUARTER_R) * 2
                source = place["lora_act_in"] + Int64(unit * (LORA_UNIT_K * 2))
                step = Int64(8 * lay.r * 2)
                blocks_left = Int32(0)
        left = cutlass.max(left, Int32(0))
        scales = exists(blocks_left) * 4
        for x in cutlass.range_constexpr(lay.act_tiles):
            size = cutlass.min(place["act_sizes"][x], left)
            copy_async(slot + lay.act_offset + x * PIECE + place["lane"] * 16, source + x * step, size, 16)
            target = slot + lay.act_scales_offset + x * WORD + place["lane"] * 4
            copy_async(target, place["ascales"][x] + Int64(block) * SCALE_BLOCK, scales, 4)

    @cute.jit
    def _copy_affine(self, lay: LayoutsSmallM, place: Any):
        """wcscale and bias of the tile's columns of y, in the order in which the epilogue wants them."""
        quad, tidx = place["thread"] % lay.quads, place["thread"]
        if tidx < 2 * lay.quads:
            column = self.first_column(lay, place["tile"], quad)
            size = exists(place["n"] - column) * 16
            source, target = place["wcscale"], place["wcscale_smem"]
            if tidx >= lay.quads:
                source, target = place["bias"], place["bias_smem"]
            copy_async(target + quad * 16, source + Int64(column) * 4, size, 16)

    # ------------------------------------------------------------ operands

    @staticmethod
    def dequant_act(lay: LayoutsSmallM, slot: Any, x: int, lane: Any) -> list[Any]:
        """Act tile ``x`` of a unit -> for each of its four words the pairs of two K blocks of 16."""
        words = load_shared(slot + lay.act_offset + x * PIECE + lane * 16, 4)
        scale = load_shared(slot + lay.act_scales_offset + x * WORD + lane * 4, 1)[0]
        factor = scale_pair(scale >> (lane % 2 * 16))  # a lane's two scale factors are one half of its word
        return [unpack_word(words[w], factor, w // 2) for w in range(4)]

    @staticmethod
    def load_weights(lay: LayoutsSmallM, place: Any, slot: Any) -> tuple[list[Any], list[Any]]:
        """(four words, two scale factors in one) of each of this lane's rows."""
        lane = place["lane"]
        words = [load_shared(slot + octet * PIECE + lane * 16, 4) for octet in range(OCTETS)]
        scales = load_shared(slot + lay.scales_offset + lane * 16, OCTETS)
        return words, [scale_pair(scale >> (lane % 2 * 16)) for scale in scales]


def exists(count: Any) -> Any:
    """1 if ``count`` is positive, else 0."""
    return cutlass.max(cutlass.min(count, Int32(1)), Int32(0))
