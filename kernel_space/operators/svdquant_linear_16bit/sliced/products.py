"""The loop over K of a warp of ``sliced``: a k-tile of weights, dequantized in registers, times x over smooth.

A lane t of a quad has elements 16 t .. 16 t + 15 of every 64 of a row, of weights and of x alike: one scale and two
words of eight codes; two pieces of 16 bytes. It takes pairs (i, i + 4) out of a word of codes, since these are 16 bits
apart, and makes the same of x. A sum over K may be taken in any order.

Weights are the 16 rows of ``mma.sync.m16n8k16``, x its 8 columns. A warp has all octets of the tile's columns, so what
it makes of its x serves all of them, and no other warp makes it again.

Rows 2, 3 and 4, 5 of an octet are exchanged among the lanes, so that four rows of codes lie in different banks.
"""

from typing import Any

import cutlass
from cutlass import Float32, Int32, Uint32, cute

from kernel_space.operators.nvfp4_quantize.parts import ptx
from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import load_shared
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import SF_BLOCK_BYTES, SF_BLOCK_ROWS
from kernel_space.operators.svdquant_gemm.sm90a_parts.packed import packed_chunk, scale_offset
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.ptx import mma_16x8x16, store_shared_f32
from kernel_space.operators.svdquant_gemm_16bit.narrow.ptx import unpack_word
from kernel_space.operators.svdquant_linear_16bit.sliced.config import OCTET
from kernel_space.operators.svdquant_linear_16bit.sliced.layouts import SlicedLayouts, Sums
from kernel_space.operators.svdquant_linear_16bit.staged.layouts import (
    HALVES,
    INVERSE,
    LINE,
    PACKED,
    SCALES,
    X,
)
from kernel_space.operators.svdquant_linear_16bit.staged.ptx import block_factor, factor_selector
from kernel_space.operators.svdquant_linear_16bit.whole.eights import VECTOR, Eights
from kernel_space.operators.svdquant_linear_16bit.whole.ptx import round_pair

PIECES = 2  # of 16 bytes: a lane's x of 64 of K, or words of codes
PAIR_ORDER = (0, 2, 1, 3)  # in which ``unpack_word`` gives pairs (i, i + 4)
QUAD_FLOATS = 4
LANES = 32
INVERSE_BYTES = 256  # of 64 of K
BLOCKS_AT_ONCE = 2


class SlicedProducts(Eights):
    """Mixin with what a multiplying warp does until its sums are whole."""

    config: Any
    has_lora: bool
    to_values = 2.0**7  # what products of a dequantized operand lack

    @staticmethod
    def zeros(sums: Sums) -> list[Any]:
        """16 x 8 blocks of sums of a warp, by tile of x, then by block of columns."""
        accs = [cute.make_rmem_tensor((4,), Float32) for _ in range(sums.act_tiles * sums.blocks)]
        for acc in accs:
            acc.fill(0.0)
        return accs

    @cute.jit
    def multiply_weights(
        self, lay: SlicedLayouts, place: Any, lora_up: Any, buffers: Any, accs: Any, held: Any, warp: Int32
    ):
        """All k-tiles of this warp, or its halves of them. Ahead of the last one it asks for what it wants of the
        low-rank branch (``held``), which is there by then.
        """
        stages, shared, sharers = self.config.num_ab_stage, self.config.slot_warps, self.config.sharers
        begin = warp // shared
        rounds = cutlass.max((place["slots"] - begin + (sharers - 1)) // sharers, Int32(1))
        for turn in cutlass.range(rounds, unroll=1):
            i = begin + turn * sharers
            if cutlass.const_expr(self.has_lora):
                if turn == rounds - 1:
                    self._await_previous()
                    self.ask(lay, place, lora_up, held, self.first_unit(lay, place, warp), warp)
            if i < place["slots"]:
                slot, parity = i % stages, i // stages & 1
                cute.arch.mbarrier_wait(buffers["ab_full"].iterator + slot, parity)
                cute.arch.mbarrier_wait(buffers["x_full"].iterator + slot, parity)
                for half in self.own_halves(warp):
                    columns = self._over_smooth(lay, buffers, slot, half)
                    self._multiply_half(lay, place, buffers, slot, half, columns, accs)
                self.give_back(buffers["ab_empty"].iterator + slot)
        for acc in accs:
            for e in cutlass.range_constexpr(4):
                acc[e] = acc[e] * self.to_values

    def own_halves(self, warp: Any) -> list[Any]:
        """Which 64s of a k-tile a warp multiplies."""
        each = HALVES // self.config.slot_warps
        return [warp % self.config.slot_warps * each + part for part in range(each)]

    def give_back(self, *empty: Any) -> None:
        """This warp has read slots, of these barriers. The fence waits for its loads: products, which want what they
        bring, may stand behind the arrival in SASS, where ptxas sees no order of the two, and TMA was seen to be faster
        than such a load (H200, driver 580.159.04). No run of the PTX shows that.
        """
        cute.arch.fence_proxy("async.shared", space="cta")
        for barrier in empty:
            self._arrive(barrier)

    # -- x --------------------------------------------------------------------------------------------------------

    @staticmethod
    def pieces_of_x(lay: SlicedLayouts, buffers: Any, slot: Any, half: Any) -> list[list[Any]]:
        """Of each tile of x this lane's two pieces of its row, four words each, as they are."""
        lane = cute.arch.lane_idx()
        row, quarter = lane // 4, lane % 4
        begin = buffers[X].iterator.toint() + (HALVES * slot + half) * (lay.rows * LINE) + row * LINE
        return [
            [
                load_shared(begin + tile * (OCTET * LINE) + ((PIECES * quarter + piece) ^ row) * 16, 4)
                for piece in range(PIECES)
            ]
            for tile in range(lay.rows // OCTET)
        ]

    def _over_smooth(self, lay: SlicedLayouts, buffers: Any, slot: Any, half: Any) -> list[list[Any]]:
        """The same over smooth, in pairs (i, i + 4)."""
        at = buffers[INVERSE].iterator.toint() + slot * lay.smooth_bytes + half * INVERSE_BYTES
        at += cute.arch.lane_idx() % 4 * 16
        inverse = [
            ptx.of_bits(word)
            for quad in range(QUAD_FLOATS)
            for word in load_shared(at + quad * 64, QUAD_FLOATS)
        ]
        return [self.made_of(lay, row, inverse) for row in self.pieces_of_x(lay, buffers, slot, half)]

    def made_of(self, lay: SlicedLayouts, row: list[Any], inverse: list[Any]) -> list[Any]:
        """Operands of both pieces of a row: x over smooth, rounded once."""
        made = []
        for piece, words in enumerate(row):
            values = self.scaled(lay, words, inverse[VECTOR * piece : VECTOR * (piece + 1)])
            made.append([round_pair(values[i], values[i + 4], is_bf16=lay.is_bf16) for i in PAIR_ORDER])
        return made

    # -- weights --------------------------------------------------------------------------------------------------

    @staticmethod
    def row_of_lane() -> Any:
        """Row of an octet, of this lane."""
        of_eight = cute.arch.lane_idx() // 4
        return (of_eight & 1) | (of_eight & 2) << 1 | (of_eight & 4) >> 1

    def _multiply_half(
        self, lay: SlicedLayouts, place: Any, buffers: Any, slot: Any, half: Any, columns: Any, accs: Any
    ) -> None:
        """64 of K of all octets."""
        row, quarter = self.row_of_lane(), cute.arch.lane_idx() % 4
        codes = buffers[PACKED].iterator.toint() + slot * lay.packed_bytes
        codes = codes + packed_chunk(row, half * 2 + quarter // 2) + quarter % 2 * 8
        scales = buffers[SCALES].iterator.toint() + slot * lay.scales_bytes + half * SF_BLOCK_BYTES
        scale_row = place["column_tile"] * lay.columns % SF_BLOCK_ROWS + row
        selector = factor_selector(quarter)
        for first in range(0, lay.up.blocks, BLOCKS_AT_ONCE):
            packed = {}
            for octet in range(2 * first, min(2 * (first + BLOCKS_AT_ONCE), lay.up.octets)):
                at = scale_row + octet * OCTET
                offset = at // SF_BLOCK_ROWS * (lay.sf_k_blocks * SF_BLOCK_BYTES) + scale_offset(at)
                factor = block_factor(load_shared(scales + offset, 1)[0], selector, is_bf16=lay.is_bf16)
                packed[octet] = factor, load_shared(codes + octet * (OCTET * lay.k // 2), PIECES)
            blocks = range(first, min(first + BLOCKS_AT_ONCE, lay.up.blocks))
            for piece in range(PIECES):
                made: dict[int, Any] = {
                    octet: unpack_word(words[piece], factor, is_bf16=lay.is_bf16)
                    for octet, (factor, words) in packed.items()
                }
                made[lay.up.octets] = (Uint32(0),) * 4  # the other octet of a last block with one
                operands = [(block, made[2 * block], made[2 * block + 1]) for block in blocks]
                of_x = [tile[piece] for tile in columns]
                self.multiply_blocks(lay.up, operands, of_x, accs, lay.is_bf16)

    @staticmethod
    def multiply_blocks(sums: Sums, operands: Any, columns: Any, accs: Any, is_bf16: bool) -> None:
        """``operands``: blocks, each with four words of both of its octets; ``columns``: four words of each tile of x.
        Between two products that add to the same sums lie those of the other tiles and blocks.
        """
        for j in (0, 2):
            for block, low, high in operands:
                operand = [low[j], high[j], low[j + 1], high[j + 1]]
                for tile in range(sums.act_tiles):
                    acc = accs[tile * sums.blocks + block]
                    mma_16x8x16(acc, operand, columns[tile][j : j + 2], is_bf16)

    @staticmethod
    def warp_again(place: Any) -> Any:
        """This warp among those that multiply, behind a loop that began with that number: ptxas (13.0) lets such a loop
        count in the number's own register, and takes it for the number behind it. The PTX is right.
        """
        return cute.arch.make_warp_uniform(place["thread"] // LANES)

    # -- sums -----------------------------------------------------------------------------------------------------

    def write_sums(self, sums: Sums, place: Any, accs: Any, own: Any) -> None:
        """``[row of x][column]`` of this warp, rows padded. ``own``: row of an octet of columns, of this lane."""
        base = place["rings"] + self.warp_again(place) * sums.slot_bytes
        base += cute.arch.lane_idx() % 4 * (2 * sums.sum_stride) + own * 4
        for tile in range(sums.act_tiles):
            for octet in range(sums.octets):
                acc = accs[tile * sums.blocks + octet // 2]
                for e in range(2):
                    address = base + (OCTET * tile + e) * sums.sum_stride + octet * (4 * OCTET)
                    store_shared_f32(address, acc[octet % 2 * 2 + e])
