"""What ``whole`` does otherwise than ``narrow`` with a unit of K: x comes as it is, and smooth with the weights.

A lane t of a quad owns elements 16 t .. 16 t + 15 of every 64 of a row, of weights and of x alike: one scale and two
words of eight codes; two pieces of 16 bytes. It takes pairs (i, i + 4) out of a word of codes, since these are 16 bits
apart. A sum over K may be taken in any order.

The warps that share a part of K replace x of a unit in its slot by x / smooth, rounded once: xs of the contract, in
pairs (i, i + 4) too, in the order of ``unpack_word``. A lane has a piece of every few rows, and inverts its eight of
smooth once.
"""

from typing import Any

import cutlass
from cutlass import Int32, Int64, cute

from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import load_shared, store_shared
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.ptx import copy_async
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.stream import exists
from kernel_space.operators.svdquant_gemm_16bit.narrow.layouts import LANES, SPANS, UNIT_K, XS_ROW, XS_TILE
from kernel_space.operators.svdquant_gemm_16bit.narrow.products import SPAN_WORDS
from kernel_space.operators.svdquant_gemm_16bit.narrow.stream import NarrowStream
from kernel_space.operators.svdquant_linear_16bit.whole.eights import VECTOR, Eights
from kernel_space.operators.svdquant_linear_16bit.whole.layouts import SMOOTH_AT, WholeLayouts
from kernel_space.operators.svdquant_linear_16bit.whole.ptx import round_pair

SPAN_BYTES = UNIT_K * 2 // SPANS
PIECES = UNIT_K // VECTOR  # of a row of a unit: 16 bytes of x
SPAN_PIECES = PIECES // SPANS


class WholeProducts(Eights, NarrowStream):
    """Mixin. ``xs`` is x here: the base knows it by that name."""

    @cute.jit
    def _multiply(
        self, lay: WholeLayouts, place: Any, i: Int32, slot: Int32, xs: Int32, held: Any, accs: Any
    ):
        own, shared = self.slots(lay, place, slot, xs)
        self._replace(lay, place, i, own, shared)
        self.meet(lay, place)
        NarrowStream._multiply(self, lay, place, i, slot, xs, held, accs)

    @cute.jit
    def _replace(self, lay: WholeLayouts, place: Any, i: Int32, own: Int32, x: Int32):
        """Unit ``i`` of x, whose smooth lies beside this warp's weights, by what is multiplied: rows that there are,
        and no further than K goes. Lanes without a piece do as if.
        """
        rows = cutlass.min(place["m"] - place["first_row"], Int32(lay.columns))
        pieces = cutlass.min(place["k"] - (place["k_begin"] + i) * UNIT_K, Int32(UNIT_K)) // VECTOR
        at_once = LANES * lay.warps_n // PIECES
        first = place["row_warp"] * (LANES // PIECES) + place["lane"] // PIECES
        piece = place["lane"] % PIECES
        has_piece = exists(pieces - piece)
        smooth = own + SMOOTH_AT + has_piece * piece * (4 * VECTOR)
        inverse = self.inverse([*load_shared(smooth, 4), *load_shared(smooth + 16, 4)])
        for begin in cutlass.range(Int32(0), rows, at_once, unroll=1):
            row = begin + first
            is_there = has_piece * exists(rows - row)
            at = x + row * XS_ROW + piece // SPAN_PIECES * SPAN_BYTES
            at += (piece % SPAN_PIECES ^ row % SPAN_PIECES) * 16
            words = load_shared(smooth + (at - smooth) * is_there, 4)
            made = self.made_of(lay, words, inverse)
            if is_there != 0:
                store_shared(at, made)

    def made_of(self, lay: WholeLayouts, words: Any, inverse: Any) -> list[Any]:
        """Four words of x over smooth."""
        values = self.scaled(lay, words, inverse)
        return [round_pair(values[i], values[i + 4], is_bf16=lay.is_bf16) for i in (0, 2, 1, 3)]

    def columns(self, lay: WholeLayouts, place: Any, slot: Any, xs: Any, word: int) -> list[Any]:
        """Of each tile of x this lane's piece that goes with ``word``."""
        first = (xs + place["matrices"]) ^ 16 * (word % SPAN_WORDS)
        offset = word // SPAN_WORDS * SPAN_BYTES
        return [load_shared(first + (offset + tile * XS_TILE), 4) for tile in range(lay.act_tiles)]

    @staticmethod
    def matrices_offset(lane: Any) -> Any:
        """Of this lane's first piece of its row of a tile of x, in the first span."""
        row = lane // 4
        return row * XS_ROW + ((lane % 4 * 2) ^ row) * 16

    @staticmethod
    def units_of_xs(place: Any) -> Any:
        """The ring of x brings no columns of LoRA."""
        return place["k_count"]

    @cute.jit
    def copy_weights(self, lay: WholeLayouts, place: Any, i: Int32, slot: Int32):
        """As ``narrow``, and smooth of the unit, of which no LoRA unit has any."""
        NarrowStream.copy_weights(self, lay, place, i, slot)
        tile = place["k_begin"] + i
        size = exists(place["k"] - tile * UNIT_K - place["lane"] * 4) * 16
        if cutlass.const_expr(lay.lora_units > 0):
            if i >= place["k_count"]:
                size = Int32(0)
        target = place["ring"] + slot * lay.slot_bytes + SMOOTH_AT + place["lane"] * 16
        copy_async(target, place["smooth"] + Int64(tile * (UNIT_K * 4)) + Int64(place["lane"] * 16), size, 16)
