"""Streaming half of the small-M kernel of sm_90a: every warp copies its units ahead, dequantizes, multiplies."""

from typing import Any

import cutlass
from cutlass import Int32, Int64, cute

from kernel_space.kernels.dequant_sm90a import DEQUANT_SHIFT, load_shared, scale_pair, unpack_word
from kernel_space.kernels.layouts_small_m_sm90a import (
    ACT_OFFSET,
    LANES,
    LORA_UNIT_K,
    OCTETS,
    PIECE,
    SCALES_OFFSET,
    UNIT_K,
    LayoutsSmallM,
)
from kernel_space.kernels.small_m_ptx_sm90a import copy_async, mma_16x8x16

FROM_DEQUANT_SCALE = 2.0 ** (-2 * DEQUANT_SHIFT)
SCALE_BLOCK = 512  # bytes of 128 rows x 64 K
QUARTER_K = UNIT_K // 4  # K elements of one lane of a quad in a unit
QUARTER_R = LORA_UNIT_K // 4


class SmallMStream:
    """Mixin with the copies and the main loop. ``place`` holds what a lane knows of where it is (see ``_place``)."""

    @cute.jit
    def stream(self, lay: LayoutsSmallM, place: Any, accs: Any):
        """Add this warp's units to ``accs``: LoRA units first, then those of K.

        With PDL weights are copied before the previous kernel is known to have ended, all else after.
        """
        stages = self.config.num_ab_stage
        begin, count = place["begin"], place["count"]
        if cutlass.const_expr(self.config.use_pdl):
            for i in cutlass.range(stages, unroll=1):
                if i < count:
                    self._copy_weights(lay, place, begin + i, place["ring"] + i * lay.slot_bytes)
            self._copy_affine(lay, place)
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
            for i in cutlass.range(stages, unroll=1):
                if i < count:
                    self._copy_act(lay, place, begin + i, place["ring"] + i * lay.slot_bytes)
                cute.arch.cp_async_commit_group()
        else:
            for i in cutlass.range(stages, unroll=1):
                if i < count:
                    self._copy_weights(lay, place, begin + i, place["ring"] + i * lay.slot_bytes)
                    self._copy_act(lay, place, begin + i, place["ring"] + i * lay.slot_bytes)
                cute.arch.cp_async_commit_group()
            self._copy_affine(lay, place)
        slot = Int32(0)
        lora_count = Int32(0)
        if cutlass.const_expr(lay.lora_units > 0):
            lora_count = cutlass.max(cutlass.min(Int32(lay.lora_units) - begin, count), Int32(0))
            for i in cutlass.range(lora_count, unroll=1):
                cute.arch.cp_async_wait_group(stages - 1)
                self._multiply_lora(lay, place["ring"] + slot * lay.slot_bytes + place["lane"] * 16, accs)
                slot = self._refill(lay, place, i, slot)
            for block in cutlass.range_constexpr(2 * lay.act_tiles):
                for i in cutlass.range_constexpr(4):
                    accs[block][i] = accs[block][i] * FROM_DEQUANT_SCALE
        for i in cutlass.range(lora_count, count, unroll=1):
            cute.arch.cp_async_wait_group(stages - 1)
            self._multiply(lay, place["ring"] + slot * lay.slot_bytes, place["lane"], accs)
            slot = self._refill(lay, place, i, slot)
        cute.arch.cp_async_wait_group(0)

    @cute.jit
    def _refill(self, lay: LayoutsSmallM, place: Any, i: Int32, slot: Int32):
        """Copy the unit ``num_ab_stage`` ahead into the slot that was just used up; the next slot."""
        stages = self.config.num_ab_stage
        address = place["ring"] + slot * lay.slot_bytes
        if i + stages < place["count"]:
            self._copy_weights(lay, place, place["begin"] + i + stages, address)
            self._copy_act(lay, place, place["begin"] + i + stages, address)
        cute.arch.cp_async_commit_group()
        following = slot + 1
        if following == stages:
            following = Int32(0)
        return following

    # ------------------------------------------------------------ copies

    @cute.jit
    def _copy_weights(self, lay: LayoutsSmallM, place: Any, unit: Int32, slot: Int32):
        """This lane's pieces of one unit of weights with their scale factors, or of lora_up."""
        target = slot + place["lane"] * 16
        if cutlass.const_expr(lay.lora_units > 0):
            if unit < lay.lora_units:
                self._copy_lora(lay, place, unit, target, "lora_up")
            else:
                self._copy_weights_of_k(place, unit - lay.lora_units, target)
        else:
            self._copy_weights_of_k(place, unit, target)

    @cute.jit
    def _copy_act(self, lay: LayoutsSmallM, place: Any, unit: Int32, slot: Int32):
        """The same of act, or of lora_act_in."""
        if cutlass.const_expr(lay.lora_units > 0):
            if unit < lay.lora_units:
                self._copy_lora(lay, place, unit, slot + ACT_OFFSET + place["lane"] * 16, "lora_act_in")
            else:
                self._copy_act_of_k(lay, place, unit - lay.lora_units, slot)
        else:
            self._copy_act_of_k(lay, place, unit, slot)

    @staticmethod
    def _copy_weights_of_k(place: Any, tile: Any, target: Any) -> None:
        left = cutlass.max(place["k"] - tile * UNIT_K - place["quarter"] * QUARTER_K, Int32(0))
        for octet in range(OCTETS):
            source = place["wgt"] + octet * place["wgt_step"] + Int64(tile * (UNIT_K // 2))
            copy_async(target + octet * PIECE, source, cutlass.min(place["row_sizes"][octet], left), 16)
        block, exists = _scale_block(place, tile)
        source = place["wscales"] + Int64(block) * SCALE_BLOCK
        copy_async(target + SCALES_OFFSET, source, cutlass.min(exists, place["tile_exists"]) * 16, 16)

    @staticmethod
    def _copy_act_of_k(lay: LayoutsSmallM, place: Any, tile: Any, slot: Any) -> None:
        left = cutlass.max(place["k"] - tile * UNIT_K - place["quarter"] * QUARTER_K, Int32(0))
        target = slot + ACT_OFFSET + place["lane"] * 16
        for i in range(lay.act_tiles):
            source = place["act"] + i * place["act_step"] + Int64(tile * (UNIT_K // 2))
            copy_async(target + i * PIECE, source, cutlass.min(place["act_sizes"][i], left), 16)
        block, exists = _scale_block(place, tile)
        count = 4 * lay.act_scale_words
        target = slot + lay.act_scales_offset + place["lane"] * count
        for i in range(lay.act_scale_loads):
            source = place["ascales"][i] + Int64(block) * SCALE_BLOCK
            copy_async(target + i * (LANES * count), source, exists * count, count)

    @staticmethod
    def _copy_lora(lay: LayoutsSmallM, place: Any, unit: Any, target: Any, name: str) -> None:
        """16 bytes a row: 8 columns of R. Beyond R (a multiple of 16) zeros."""
        offset = unit * (LORA_UNIT_K * 2)
        sizes = place["row_sizes"] if name == "lora_up" else place["act_sizes"]
        for i, size in enumerate(sizes):
            if lay.r % LORA_UNIT_K:
                left = cutlass.max(Int32(lay.r) - unit * LORA_UNIT_K - place["quarter"] * QUARTER_R, Int32(0))
                size = cutlass.min(size, left * 2)
            source = place[name] + i * place[f"{name}_step"] + Int64(offset)
            copy_async(target + i * PIECE, source, size, 16)

    @cute.jit
    def _copy_affine(self, lay: LayoutsSmallM, place: Any):
        """wcscale and bias of the tile's columns of y, in the order in which the epilogue wants them."""
        quad, tidx = place["thread"] % lay.quads, place["thread"]
        if tidx < 2 * lay.quads:
            column = self.first_column(lay, place["tile"], quad)
            size = cutlass.max(cutlass.min(place["n"] - column, Int32(1)), Int32(0)) * 16
            source, target = place["wcscale"], place["wcscale_smem"]
            if tidx >= lay.quads:
                source, target = place["bias"], place["bias_smem"]
            copy_async(target + quad * 16, source + Int64(column) * 4, size, 16)

    # ------------------------------------------------------------ products

    @staticmethod
    def _multiply(lay: LayoutsSmallM, slot: Any, lane: Any, accs: Any) -> None:
        """128 of K: word w of a lane's 32 codes makes two K blocks of 16, for both operands alike."""
        shift = lane % 2 * 16  # a lane's two scale factors are one half of its word
        words = [load_shared(slot + octet * PIECE + lane * 16, 4) for octet in range(OCTETS)]
        scales = load_shared(slot + SCALES_OFFSET + lane * 16, 4)
        factors = [scale_pair(scale >> shift) for scale in scales]
        act = [load_shared(slot + ACT_OFFSET + i * PIECE + lane * 16, 4) for i in range(lay.act_tiles)]
        act_factors: dict[int, Any] = {}
        count = lay.act_scale_words
        for i in range(lay.act_scale_loads):
            address = slot + lay.act_scales_offset + i * (LANES * 4 * count) + lane * (4 * count)
            for number, scale in enumerate(load_shared(address, count)):
                act_factors[i + number * 4] = scale_pair(scale >> shift)
        for w in range(4):
            half = w // 2
            a = [unpack_word(words[octet][w], factors[octet], half) for octet in range(OCTETS)]
            for i in range(lay.act_tiles):
                b = unpack_word(act[i][w], act_factors[i], half)
                for pair in (0, 2):
                    for block in range(2):
                        rows = a[2 * block], a[2 * block + 1]
                        operand = [rows[0][pair], rows[1][pair], rows[0][pair + 1], rows[1][pair + 1]]
                        mma_16x8x16(accs[2 * i + block], operand, b[pair : pair + 2], False)

    @staticmethod
    def _multiply_lora(lay: LayoutsSmallM, pieces: Any, accs: Any) -> None:
        """32 columns of R: words 2j and 2j + 1 of a lane's piece make K block j."""
        rows = [load_shared(pieces + octet * PIECE, 4) for octet in range(OCTETS)]
        for i in range(lay.act_tiles):
            b = load_shared(pieces + ACT_OFFSET + i * PIECE, 4)
            for j in (0, 2):
                for block in range(2):
                    low, high = rows[2 * block], rows[2 * block + 1]
                    operand = [low[j], high[j], low[j + 1], high[j + 1]]
                    mma_16x8x16(accs[2 * i + block], operand, b[j : j + 2], lay.lora_bf16)


def _scale_block(place: Any, tile: Any) -> tuple[Any, Any]:
    """Index along K of the block that holds this lane's scale factors of a unit, and 1 if there is one, else 0."""
    block = tile * 2 + place["quarter"] // 2
    return block, cutlass.max(cutlass.min(place["k_blocks"] - block, Int32(1)), Int32(0))
