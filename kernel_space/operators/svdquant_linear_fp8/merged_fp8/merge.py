"""Of the first kernel of ``merged_fp8`` the CTAs that merge: weights as one FP8 matrix, the low-rank branch in it.

``merged8[N,K] = e4m3((codes * scales * (1 / smooth[K]) + lora_up[N,R] @ lora_down[K,R].T) * (448 / wpeak[N]))``

As ``merged/merge.py``, but for the last product and the rounding. A row is written in the order of K in which lanes
have it: of 16 neighbours lane t of a quad holds 2 t, 2 t + 1, 8 + 2 t and 9 + 2 t, which become four bytes. x is
written in the same order (``rows.py``), so products meet.
"""

from typing import Any

import cutlass
from cutlass import Int32, Int64, cute

from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K
from kernel_space.operators.nvfp4_quantize.parts.ptx import multiply, multiply_add, store_if, two_halves
from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import load_shared, store_matrices
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import WARP_ROWS
from kernel_space.operators.svdquant_linear_16bit.merged.layouts import MergeLayouts
from kernel_space.operators.svdquant_linear_16bit.merged.merge import PIECE, Merge, load_shared_pair
from kernel_space.operators.svdquant_linear_16bit.merged.ptx import byte_selector, pair_of_byte
from kernel_space.operators.svdquant_linear_fp8.merged_fp8.ptx import e4m3_word, factor_of

GROUPS = CHUNK_K // PIECE  # pieces of 16 K of a row of a chunk


class MergeFp8(Merge):
    """Mixin with the merging CTAs. ``pointers`` of ``merge_part`` end with wpeak."""

    def _merge_place(
        self, lay: MergeLayouts, pointers: Any, merged: Any, buffers: Any, where: Any, n: Any, k: Any
    ) -> dict[str, Any]:
        """And by what this lane's two rows are multiplied at last."""
        place = super()._merge_place(lay, pointers[:-1], merged, buffers, where, n, k)
        peaks = cute.make_tensor(pointers[-1], cute.make_layout(n))
        rows = [cutlass.min(place["warp_row"] + place["lane"] // 4 + 8 * half, n - 1) for half in range(2)]
        return place | {"factors": [factor_of(peaks[row]) for row in rows]}

    @cute.jit
    def _finish_chunk(self, lay: MergeLayouts, place: Any, acc: Any, held: Any, i: Int32):
        """Scale, add, round; a warp's 16 rows of 64 columns to global memory."""
        factors = self._factors(held)
        lane = place["lane"]
        row = lane // 8 % 2 * 8 + lane % 8
        for group in cutlass.range_constexpr(0, GROUPS, 2):
            words = []
            for one in (group, group + 1):
                words += self._group_words(lay, place, acc, held, factors, i, one)
            store_matrices(place["staged"] + _at(row, group + lane // 16), words, transpose=False)
        # On their way while the next chunk is multiplied.
        self._load_codes(place, i + 1, held)
        cute.arch.sync_warp()
        for step in cutlass.range_constexpr(WARP_ROWS * GROUPS // 32):
            row_of_warp, piece = step * (32 // GROUPS) + lane // GROUPS, lane % GROUPS
            found = load_shared(place["staged"] + _at(row_of_warp, piece), 4)
            line, column = place["warp_row"] + row_of_warp, (place["first"] + i) * CHUNK_K + piece * PIECE
            wanted = Int32(line < place["n"]) & Int32(column < place["k"])
            store_if(place["merged"] + Int64(line) * place["k"] + column, found, wanted)
        # The next chunk is turned in the same place.
        cute.arch.sync_warp()

    @staticmethod
    def _group_words(
        lay: MergeLayouts, place: Any, acc: Any, held: Any, factors: Any, i: Any, group: int
    ) -> list[Any]:
        """Of 16 columns this lane's four numbers of both of its rows: two matrices of stmatrix."""
        selector = byte_selector(place["quarter"])
        inverses = place["inverses"] + i * (CHUNK_K * 4) + place["quarter"] * 8
        scaled_by = [load_shared_pair(inverses + (2 * group + one) * 32) for one in range(2)]
        words = []
        for half in range(2):
            pairs = []
            for one in range(2):
                octet = 2 * group + one
                exact = pair_of_byte(held[octet, half], selector, factors[half][group])
                values = []
                for e, value in enumerate(two_halves(exact, "f16")):
                    if lay.r:
                        value = multiply_add(value, scaled_by[one][e], acc[(e, half, octet), 0, 0])
                    else:
                        value = multiply(value, scaled_by[one][e])
                    values.append(multiply(value, place["factors"][half]))
                pairs.append(values)
            words.append(e4m3_word(*pairs))
        return words


def _at(row: Any, piece: Any) -> Any:
    """Where a piece of a warp's row is staged: two rows fill the banks, so every second row has another order."""
    return row * CHUNK_K + ((piece ^ (row // 2 % GROUPS)) * PIECE)
