"""Copies and main loop of the kernel ``narrow``: a warp's weights ahead, xs of the warps that share a part of K.

Copies are ``cp.async`` in groups: one of each slot of weights, then one of each slot of xs, then one of both for each
unit that was multiplied. So when all but the latest ``num_dq_stage - 1`` groups are there, so are xs of the unit and,
``dequant_ahead`` units further on, weights.
"""

from typing import Any

import cutlass
from cutlass import Int32, Int64, cute

from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.ptx import copy_async
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.reduce import SmallMReduce
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.stream import SCALE_BLOCK, exists
from kernel_space.operators.svdquant_gemm_16bit.narrow.layouts import (
    LANES,
    LORA_UNIT_K,
    OCTETS,
    PIECE,
    SCALE_PIECES,
    UNIT_K,
    XS_ROW,
    NarrowLayouts,
)
from kernel_space.operators.svdquant_gemm_16bit.narrow.products import NarrowProducts, make_held

FIRST_BARRIER = 1
QUARTER_K, QUARTER_R = UNIT_K // 4, LORA_UNIT_K // 4
ROW_PIECES = XS_ROW // 16
ROWS_OF_COPY = LANES // ROW_PIECES
COPIES_OF_TILE = 8 // ROWS_OF_COPY


class NarrowStream(NarrowProducts, SmallMReduce):
    """Mixin. ``place`` holds what a lane knows of where it is (``kernel.py``)."""

    to_values = 2.0**7  # what products of a dequantized operand lack

    @cute.jit
    def stream(self, lay: NarrowLayouts, place: Any, accs: Any):
        """Add this warp's units to ``accs``: those of K, then LoRA units.

        With PDL weights are copied, and the first unit is dequantized, before the previous kernel is known to have
        ended; xs and lora_act_in are read after that.
        """
        count = place["k_count"] + place["lora_count"]
        for i in cutlass.range(lay.stages, unroll=1):
            if i < count:
                self.copy_weights(lay, place, i, i)
            cute.arch.cp_async_commit_group()
        self._copy_affine(lay, place)
        held = make_held()
        if cutlass.const_expr(self.config.dequant_ahead > 0):
            held.fill(0)
            cute.arch.cp_async_wait_group(lay.stages - 1)
            cute.arch.sync_warp()
            if place["k_count"] > 0:
                self.dequant_unit(lay, place, place["ring"], held)
        if cutlass.const_expr(self.config.use_pdl):
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        for i in cutlass.range(lay.xs_stages, unroll=1):
            if i < self.units_of_xs(place):
                self.copy_xs(lay, place, i, i)
            cute.arch.cp_async_commit_group()
        slot, xs = Int32(0), Int32(0)
        for i in cutlass.range(place["k_count"], unroll=1):
            cute.arch.cp_async_wait_group(lay.xs_stages - 1)
            self.meet(lay, place)
            self._multiply(lay, place, i, slot, xs, held, accs)
            self.meet(lay, place)
            self.refill(lay, place, i, slot, xs)
            slot, xs = following(slot, lay.stages), following(xs, lay.xs_stages)
        for acc in accs:
            for e in cutlass.range_constexpr(cute.size(acc)):
                acc[e] = acc[e] * self.to_values
        if cutlass.const_expr(lay.lora_units > 0):
            self.lora(lay, place, slot, xs, accs)
        cute.arch.cp_async_wait_group(0)

    @cute.jit
    def lora(self, lay: NarrowLayouts, place: Any, slot: Int32, xs: Int32, accs: Any):
        """This warp's LoRA units, whose columns come through the ring of xs."""
        count = place["k_count"] + place["lora_count"]
        for i in cutlass.range(place["k_count"], count, unroll=1):
            cute.arch.cp_async_wait_group(lay.xs_stages - 1)
            self.meet(lay, place)
            own, shared = self.slots(lay, place, slot, xs)
            self.multiply_slices(lay, place, own, shared, accs)
            self.meet(lay, place)
            self.refill(lay, place, i, slot, xs)
            slot, xs = following(slot, lay.stages), following(xs, lay.xs_stages)

    @cute.jit
    def _multiply(
        self, lay: NarrowLayouts, place: Any, i: Int32, slot: Int32, xs: Int32, held: Any, accs: Any
    ):
        """Unit ``i``; its successor is dequantized behind it."""
        own, shared = self.slots(lay, place, slot, xs)
        if cutlass.const_expr(self.config.dequant_ahead > 0):
            self.multiply_held(lay, place, own, shared, held, accs)
            if i + 1 < place["k_count"]:
                ahead = place["ring"] + following(slot, lay.stages) * lay.slot_bytes
                self.dequant_unit(lay, place, ahead, held)
        else:
            self.multiply_packed(lay, place, own, shared, accs)

    @staticmethod
    def units_of_xs(place: Any) -> Any:
        """Of this warp those that the ring of xs brings columns of."""
        return place["k_count"] + place["lora_count"]

    @staticmethod
    def slots(lay: NarrowLayouts, place: Any, slot: Any, xs: Any) -> tuple[Any, Any]:
        return place["ring"] + slot * lay.slot_bytes, place["xs_ring"] + xs * lay.xs_slot_bytes

    @cute.jit
    def meet(self, lay: NarrowLayouts, place: Any):
        """All lanes that share slots are here: of this warp, of the warps that share xs."""
        if cutlass.const_expr(lay.warps_n == 1):
            cute.arch.sync_warp()
        else:
            threads = LANES * lay.warps_n
            cute.arch.barrier(barrier_id=FIRST_BARRIER + place["part"], number_of_threads=threads)

    @cute.jit
    def refill(self, lay: NarrowLayouts, place: Any, i: Int32, slot: Int32, xs: Int32):
        """Into the slots that were just used up: weights ``num_ab_stage`` units ahead, xs ``num_dq_stage``."""
        count = place["k_count"] + place["lora_count"]
        if i + lay.stages < count:
            self.copy_weights(lay, place, i + lay.stages, slot)
        if i + lay.xs_stages < self.units_of_xs(place):
            self.copy_xs(lay, place, i + lay.xs_stages, xs)
        cute.arch.cp_async_commit_group()

    # ------------------------------------------------------------ copies

    @cute.jit
    def copy_weights(self, lay: NarrowLayouts, place: Any, i: Int32, slot: Int32):
        """This lane's pieces of unit ``i`` of the warp: weights with their scale factors, or lora_up.

        ``left`` is positive where there is something along K or R, then 16 or more.
        """
        tile, quarter = place["k_begin"] + i, place["quarter"]
        left = place["k"] - tile * UNIT_K - quarter * QUARTER_K
        source, step = place["wgt"] + Int64(tile * (UNIT_K // 2)), place["wgt_step"]
        block = tile * 2 + quarter % 2
        blocks_left = place["k_blocks"] - block
        if cutlass.const_expr(lay.lora_units > 0):
            if i >= place["k_count"]:
                unit = place["lora_begin"] + i - place["k_count"]
                left = (Int32(lay.r) - unit * LORA_UNIT_K - quarter * QUARTER_R) * 2
                source = place["lora_up"] + Int64(unit * (LORA_UNIT_K * 2))
                step = Int64(32 * lay.r * 2)
                blocks_left = Int32(0)
        begin = place["ring"] + slot * lay.slot_bytes
        for octet in cutlass.range_constexpr(OCTETS):
            # All or nothing, as ptxas sees: for any other number it computes addresses.
            size = exists(cutlass.min(place["row_sizes"][octet], left)) * 16
            copy_async(begin + place["piece"] + octet * PIECE, source + octet * step, size, 16)
        if quarter < 2:
            scales = exists(cutlass.min(blocks_left, place["tile_exists"])) * 16
            target = begin + OCTETS * PIECE + quarter * SCALE_PIECES + place["lane"] // 4 * 16
            copy_async(target, place["wscales"] + Int64(block) * SCALE_BLOCK, scales, 16)

    @cute.jit
    def copy_xs(self, lay: NarrowLayouts, place: Any, i: Int32, slot: Int32):
        """This warp's share of unit ``i`` of xs, or of lora_act_in: every ``warps_n``-th copy of 32 pieces."""
        begin = place["xs_ring"] + slot * lay.xs_slot_bytes
        if i < place["k_count"]:
            tile = place["k_begin"] + i
            left = place["xs_left"] - tile * UNIT_K
            source, target = place["xs"] + Int64(tile * XS_ROW), begin + place["xs_target"]
            for share in cutlass.range_constexpr(COPIES_OF_TILE * lay.act_tiles // lay.warps_n):
                row = share * ROWS_OF_COPY * lay.warps_n  # beyond this lane's first one
                here = exists(cutlass.min(place["rows_left"] - row, left)) * 16
                to = (target ^ row % 8 * 16) + row * XS_ROW
                copy_async(to, source + place["xs_step"] * share, here, 16)
        else:
            if cutlass.const_expr(lay.lora_units > 0):
                self._copy_lora_act(lay, place, place["lora_begin"] + i - place["k_count"], begin)

    @cute.jit
    def _copy_lora_act(self, lay: NarrowLayouts, place: Any, unit: Int32, begin: Int32):
        """Row g of every ``warps_n``-th tile, quarter t of the unit's 32 columns."""
        left = (Int32(lay.r) - unit * LORA_UNIT_K - place["quarter"] * QUARTER_R) * 2
        left = cutlass.max(left, Int32(0))
        for share in cutlass.range_constexpr(-(-lay.act_tiles // lay.warps_n)):
            tile = share * lay.warps_n + place["row_warp"]
            row = place["first_row"] + 8 * tile + place["lane"] // 4
            size = cutlass.min(exists(place["m"] - row) * 16, left)
            source = place["lora_act_in"] + Int64(row) * (lay.r * 2) + Int64(unit * (LORA_UNIT_K * 2))
            if tile < lay.act_tiles:
                target = begin + tile * PIECE + place["lane"] * 16
                copy_async(target, source + Int64(place["quarter"] * 16), size, 16)

    @cute.jit
    def _copy_affine(self, lay: NarrowLayouts, place: Any):
        """wcscale and bias of the tile's columns of y, in the order in which the epilogue wants them."""
        quad, tidx = place["thread"] % lay.quads, place["thread"]
        if tidx < 2 * lay.quads:
            column = self.first_column(lay, place["tile"], quad)
            size = exists(place["n"] - column) * 16
            source, target = place["wcscale"], place["wcscale_smem"]
            if tidx >= lay.quads:
                source, target = place["bias"], place["bias_smem"]
            copy_async(target + quad * 16, source + Int64(column) * 4, size, 16)


def following(slot: Any, slots: int) -> Any:
    """The next slot of a ring."""
    return slot + 1 - exists(slot + 2 - slots) * slots
