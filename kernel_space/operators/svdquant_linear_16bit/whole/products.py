"""What ``whole`` does otherwise than ``narrow`` with a unit of K: x comes as it is, and smooth with the weights.

A lane t of a quad owns elements 16 t .. 16 t + 15 of every 64 of a row, of weights and of x alike: one scale and two
words of eight codes; two pieces of 16 bytes. It takes pairs (i, i + 4) out of a word of codes, since these are 16 bits
apart, and rounds the same pairs of x / smooth. A sum over K may be taken in any order.
"""

from typing import Any

import cutlass
from cutlass import Int32, Int64, cute

from kernel_space.operators.nvfp4_quantize.parts.ptx import multiply_each, two_halves
from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import load_shared
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.ptx import copy_async, load_shared_f32
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.stream import exists
from kernel_space.operators.svdquant_gemm_16bit.narrow.layouts import SPANS, UNIT_K, XS_ROW, XS_TILE
from kernel_space.operators.svdquant_gemm_16bit.narrow.products import SPAN_WORDS
from kernel_space.operators.svdquant_gemm_16bit.narrow.stream import NarrowStream
from kernel_space.operators.svdquant_linear_16bit.whole.layouts import SMOOTH_AT, WholeLayouts
from kernel_space.operators.svdquant_linear_16bit.whole.ptx import inverse, round_pair, store_four

SPAN_BYTES = UNIT_K * 2 // SPANS


class WholeProducts(NarrowStream):
    """Mixin. ``xs`` is x here: the base knows it by that name."""

    def dequant_unit(self, lay: WholeLayouts, place: Any, slot: Any, held: Any) -> None:
        self._invert(lay, place, slot)
        NarrowStream.dequant_unit(self, lay, place, slot, held)

    def multiply_packed(self, lay: WholeLayouts, place: Any, slot: Any, xs: Any, accs: Any) -> None:
        self._invert(lay, place, slot)
        NarrowStream.multiply_packed(self, lay, place, slot, xs, accs)

    @staticmethod
    def _invert(lay: WholeLayouts, place: Any, slot: Any) -> None:
        """smooth in a slot -> its reciprocals in its place, four by each lane, for all lanes of the warp."""
        at = slot + SMOOTH_AT + place["lane"] * 16
        store_four(at, [inverse(value) for value in load_shared_f32(at)])
        cute.arch.sync_warp()

    def columns(self, lay: WholeLayouts, place: Any, slot: Any, xs: Any, word: int) -> list[Any]:
        """Of each tile of x this lane's eight elements that go with ``word``, times 1 / smooth and rounded once: xs of
        the contract, in pairs (i, i + 4) in the order of ``unpack_word``.
        """
        at = slot + SMOOTH_AT + place["quarter"] * 64
        at += word // SPAN_WORDS * (2 * SPAN_BYTES) + word % SPAN_WORDS * 32
        by = [one for offset in (0, 16) for one in load_shared_f32(at + offset)]
        kind = "bf16" if lay.is_bf16 else "f16"
        found = []
        for piece in self.plain_columns(lay, place, xs, word):
            values = multiply_each([one for two in piece for one in two_halves(two, kind)], by, paired=False)
            found.append([round_pair(values[i], values[i + 4], is_bf16=lay.is_bf16) for i in (0, 2, 1, 3)])
        return found

    @staticmethod
    def plain_columns(lay: WholeLayouts, place: Any, x: Any, word: int) -> list[Any]:
        """The same as they are: eight neighbours along K."""
        first = (x + place["matrices"]) ^ 16 * (word % SPAN_WORDS)
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
