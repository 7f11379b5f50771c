"""Products of the kernel ``narrow``: weights of a unit to operands in registers, xs by ``ldmatrix``, ``mma.sync``."""

from typing import Any

from cutlass import cute

from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import (
    broadcast_factor,
    gather_bytes,
    load_shared,
)
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.ptx import mma_16x8x16
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.sync import SmallMSync
from kernel_space.operators.svdquant_gemm_16bit.dequant import scale_pair
from kernel_space.operators.svdquant_gemm_16bit.narrow.layouts import (
    LANES,
    OCTETS,
    PIECE,
    SCALE_PIECES,
    SPANS,
    UNIT_K,
    XS_TILE,
    NarrowLayouts,
)
from kernel_space.operators.svdquant_gemm_16bit.narrow.ptx import load_matrices, unpack_word

SPAN_WORDS = 2  # of eight codes, of a lane's row in a span
PAIRS = 4  # of a word
HELD_WORDS = SPANS * SPAN_WORDS * OCTETS * PAIRS


class NarrowProducts(SmallMSync):
    """Mixin: sums are 16 x 8 blocks, two row blocks for each tile of xs (``SmallMSync.sum_at``)."""

    @staticmethod
    def load_packed(place: Any, slot: Any) -> tuple[list[Any], list[Any]]:
        """Of each of this lane's rows: two words of each span, and the spans' two factors in one word's scale bytes."""
        first = slot + place["words"]
        words = [
            [word for span in range(SPANS) for word in load_shared((first ^ 32 * span) + octet * PIECE, 2)]
            for octet in range(OCTETS)
        ]
        at = slot + OCTETS * PIECE + place["lane"] // 4 * 16
        low, high = (load_shared(at + SCALE_PIECES * span, OCTETS) for span in range(SPANS))
        own = place["quarter"] | (place["quarter"] + 4) << 4  # this lane's byte of two words
        return words, [gather_bytes(low[octet], high[octet], own) for octet in range(OCTETS)]

    @staticmethod
    def dequant_word(lay: NarrowLayouts, packed: Any, word: int) -> list[tuple[Any, ...]]:
        """Word ``word`` of a unit of each row -> pairs of four chunks of each."""
        words, scales = packed
        found = []
        for octet in range(OCTETS):
            pair = scale_pair(scales[octet], is_bf16=lay.is_bf16)
            factor = broadcast_factor(pair, word // SPAN_WORDS)
            found.append(unpack_word(words[octet][word], factor, is_bf16=lay.is_bf16))
        return found

    def dequant_unit(self, lay: NarrowLayouts, place: Any, slot: Any, held: Any) -> None:
        """A unit of weights -> ``held``, 16-bit operands of all its K blocks."""
        packed = self.load_packed(place, slot)
        for word in range(SPANS * SPAN_WORDS):
            for octet, pairs in enumerate(self.dequant_word(lay, packed, word)):
                for i, pair in enumerate(pairs):
                    held[(word * OCTETS + octet) * PAIRS + i] = pair

    def multiply_held(self, lay: NarrowLayouts, place: Any, slot: Any, xs: Any, held: Any, accs: Any) -> None:
        """A unit that ``dequant_unit`` left in ``held``."""
        for word in range(SPANS * SPAN_WORDS):
            columns = self.columns(lay, place, slot, xs, word)
            self.multiply_word(lay, columns, self.rows_of(held, word), accs)

    @staticmethod
    def rows_of(held: Any, word: int) -> list[list[Any]]:
        """What ``held`` has of each row for two K blocks."""
        return [[held[(word * OCTETS + octet) * PAIRS + i] for i in range(PAIRS)] for octet in range(OCTETS)]

    def multiply_packed(self, lay: NarrowLayouts, place: Any, slot: Any, xs: Any, accs: Any) -> None:
        """A unit that is dequantized as it is multiplied."""
        packed = self.load_packed(place, slot)
        for word in range(SPANS * SPAN_WORDS):
            columns = self.columns(lay, place, slot, xs, word)
            self.multiply_word(lay, columns, self.dequant_word(lay, packed, word), accs)

    def columns(self, lay: NarrowLayouts, place: Any, slot: Any, xs: Any, word: int) -> list[Any]:
        """Of each tile of xs the four chunks that go with ``word`` of a unit of weights, whose slot is ``slot``."""
        first = (xs + place["matrices"]) ^ 64 * (word % SPAN_WORDS)
        offset = word // SPAN_WORDS * (UNIT_K * 2 // SPANS)
        return [load_matrices(first + (offset + tile * XS_TILE)) for tile in range(lay.act_tiles)]

    @staticmethod
    def multiply_word(lay: NarrowLayouts, columns: Any, a: Any, accs: Any) -> None:
        """Two K blocks of 16: ``a``, four words of each row of weights; ``columns``, four of each tile of xs."""
        for j in (0, 2):
            for tile in range(lay.act_tiles):
                for block in range(2):
                    low, high = a[2 * block], a[2 * block + 1]
                    operand = [low[j], high[j], low[j + 1], high[j + 1]]
                    mma_16x8x16(accs[2 * tile + block], operand, columns[tile][j : j + 2], lay.is_bf16)

    @staticmethod
    def multiply_slices(lay: NarrowLayouts, place: Any, slot: Any, xs: Any, accs: Any) -> None:
        """32 columns of R: words 2j and 2j + 1 of a lane's piece make K block j, for both operands alike."""
        rows = [load_shared(slot + place["piece"] + octet * PIECE, 4) for octet in range(OCTETS)]
        for tile in range(lay.act_tiles):
            columns = load_shared(xs + place["lane"] * (PIECE // LANES) + tile * PIECE, 4)
            for j in (0, 2):
                for block in range(2):
                    low, high = rows[2 * block], rows[2 * block + 1]
                    operand = [low[j], high[j], low[j + 1], high[j + 1]]
                    mma_16x8x16(accs[2 * tile + block], operand, columns[j : j + 2], lay.is_bf16)

    @staticmethod
    def matrices_offset(lane: Any) -> Any:
        """Of the row of xs whose address this lane gives to ``ldmatrix``, in the first span: piece lane / 8."""
        row = lane % 8
        return row * (XS_TILE // 8) + ((lane // 8) ^ row) * 16


def make_held() -> Any:
    from cutlass import Uint32

    return cute.make_rmem_tensor((HELD_WORDS,), Uint32)
