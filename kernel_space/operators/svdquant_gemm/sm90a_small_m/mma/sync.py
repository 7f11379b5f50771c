"""Products of the small-M kernel with ``mma.sync``: every warp dequantizes all act tiles of its units itself."""

from typing import Any

from cutlass import Float32, cute

from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import load_shared, unpack_word
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.layouts import (
    HALF_DTYPES,
    OCTETS,
    PIECE,
    LayoutsSmallM,
)
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.ptx import mma_16x8x16
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.stream import SmallMStream

TILES_AT_ONCE = 4  # act tiles between two mma that add to the same sums: 8 mma in flight hide their latency


class SmallMSync:
    """Mixin: sums are 16 x 8 blocks, two row blocks for each act tile."""

    @staticmethod
    def multiply(lay: LayoutsSmallM, place: Any, i: Any, slot: Any, accs: Any) -> None:
        """128 of K: word w of a lane's 32 codes makes two K blocks of 16, for both operands alike."""
        words, factors = SmallMStream.load_weights(lay, place, slot)
        act = [SmallMStream.dequant_act(lay, slot, x, place["lane"]) for x in range(lay.act_tiles)]
        for w in range(4):
            a = [unpack_word(row[w], factor, w // 2) for row, factor in zip(words, factors, strict=True)]
            for first in range(0, lay.act_tiles, TILES_AT_ONCE):
                for pair in (0, 2):
                    for tile in range(first, min(first + TILES_AT_ONCE, lay.act_tiles)):
                        for block in range(2):
                            low, high = a[2 * block], a[2 * block + 1]
                            operand = [low[pair], high[pair], low[pair + 1], high[pair + 1]]
                            columns = act[tile][w][pair : pair + 2]
                            mma_16x8x16(accs[2 * tile + block], operand, columns, False)

    @staticmethod
    def multiply_lora(lay: LayoutsSmallM, place: Any, i: Any, slot: Any, accs: Any) -> None:
        """32 columns of R: words 2j and 2j + 1 of a lane's piece make K block j."""
        own = slot + place["lane"] * 16
        is_bf16 = lay.lora_dtype is HALF_DTYPES["bf16"]
        rows = [load_shared(own + octet * PIECE, 4) for octet in range(OCTETS)]
        for tile in range(lay.act_tiles):
            columns = load_shared(own + lay.act_offset + tile * PIECE, 4)
            for j in (0, 2):
                for block in range(2):
                    low, high = rows[2 * block], rows[2 * block + 1]
                    operand = [low[j], high[j], low[j + 1], high[j + 1]]
                    mma_16x8x16(accs[2 * tile + block], operand, columns[j : j + 2], is_bf16)

    @staticmethod
    def make_sums(lay: LayoutsSmallM) -> list[Any]:
        return [cute.make_rmem_tensor((4,), Float32) for _ in range(2 * lay.act_tiles)]

    @staticmethod
    def sum_at(accs: Any, tile: int, octet: int, e: int) -> Any:
        """Row 8 octet + g of the warp's weights, row 8 tile + 2 (lane % 4) + e of act."""
        return accs[2 * tile + octet // 2][octet % 2 * 2 + e]
