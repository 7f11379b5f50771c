"""What the epilogue does with a subtile of y: 16 bits, ``* 1 / smooth``, a scale for each 16 columns, codes."""

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, Uint32, cute

from kernel_space.numerics.blocked import SF_BLOCK_BYTES, SF_BLOCK_K, SF_ROWS, SF_VEC_SIZE
from kernel_space.operators.nvfp4_quantize.parts import arithmetic, ptx
from kernel_space.operators.svdquant_gemm.sm100a.epilogue import EPILOGUE_THREADS, EpilogueSm100a
from kernel_space.operators.svdquant_gemm_nvfp4.sm100a.layouts import QuantizingLayouts

VECTOR_BYTES = 16  # of a store to SMEM
CODES_OF_WORD = 8
PAIR_K = 2 * SF_VEC_SIZE  # columns whose scales are converted together
_STORE_PAIR = (
    "{\n.reg .pred p;\n.reg .b16 h;\nsetp.ne.b32 p, $1, 0;\ncvt.u16.u32 h, $2;\n@p st.global.b16 [$0], h;\n}"
)


class QuantizingEpilogue(EpilogueSm100a):
    """Mixin: what ``EpilogueSm100a`` leaves to others. Thread t has row t of the CTA's tile."""

    @staticmethod
    def _register_shape(lay: QuantizingLayouts, thr_t2r: Any, gC_epi: cute.Tensor) -> Any:
        whole = cute.make_identity_tensor((lay.cta_tile_mnk[0], cute.size(lay.epi_tile[1])))
        return thr_t2r.partition_D(cute.flat_divide(whole, lay.epi_tile))[(None, None, None, 0, 0)].shape

    @staticmethod
    def _store_partition(
        lay: QuantizingLayouts, copy_t2r: Any, registers: Any, sC: cute.Tensor, tidx: Int32
    ) -> Any:
        atom = cute.make_copy_atom(
            cute.nvgpu.CopyUniversalOp(), lay.store_dtype, num_bits_per_copy=8 * VECTOR_BYTES
        )
        threads, own = cute.make_layout((SF_ROWS, 1)), cute.make_layout((1, VECTOR_BYTES))
        copy_r2s = cute.make_tiled_copy_tv(atom, threads, own)
        tRS_sC = copy_r2s.get_slice(tidx).partition_D(sC)
        rC = cute.make_rmem_tensor(tRS_sC[(None, None, None, 0)].shape, lay.store_dtype)
        return rC, rC, copy_r2s, tRS_sC

    @cute.jit
    def _load_beside(
        self,
        lay: QuantizingLayouts,
        beside: Any,
        buffers: Any,
        tile_m: Int32,
        tile_n: Int32,
        n: Int32,
        tidx: Int32,
        bidx: Int32,
    ):
        """1 / next_smooth of the tile's columns to SMEM, beyond the last one 1. Where this thread's scales go:
        (address of those of column 0, whether the row exists, whether its block does, first column, columns of y,
        1 / smooth by subtiles or None)."""
        smooth, ascales, m, columns = beside
        first = tile_n * lay.tile_columns
        inverse = None
        if cutlass.const_expr(lay.has_smooth):
            gSmooth = cute.make_tensor(smooth, cute.make_layout(columns))
            held = buffers["1 / next_smooth"]
            for chunk in cutlass.range_constexpr(-(-lay.tile_columns // EPILOGUE_THREADS)):
                index = chunk * EPILOGUE_THREADS + tidx
                value = Float32(1.0)
                if first + index < columns:
                    value = gSmooth[first + index]
                if index < lay.tile_columns:
                    held[index] = ptx.divide(Float32(1.0), value)
            each = cute.size(lay.epi_tile[1])
            inverse = cute.make_tensor(held.iterator, cute.make_layout((each, lay.num_epi_subtiles)))
        block = tile_m * self.cta_group_size + bidx % self.cta_group_size
        per_row = (columns + (SF_BLOCK_K - 1)) >> 6
        address = ascales.toint() + Int64(block) * per_row * SF_BLOCK_BYTES
        address += Int64((tidx & 31) * 16 + (tidx >> 5) * 4)
        return address, Int32(block * SF_ROWS + tidx < m), Int32(block * SF_ROWS < m), first, columns, inverse

    def _convert(
        self, lay: QuantizingLayouts, rAccs: list[Any], rC: cute.Tensor, subtile: Any, place: Any
    ) -> None:
        """Codes of this thread's columns to ``rC``; their scales to global memory."""
        address, row_exists, block_exists, first, columns, inverse = place
        each = cute.size(lay.epi_tile[1])
        rounded = rAccs[0].load().to(lay.c_dtype).to(Float32)
        z = [rounded[i] for i in range(each)]
        if lay.has_smooth:
            own = cute.make_rmem_tensor(each, Float32)
            cute.autovec_copy(inverse[(None, subtile)], own)
            z = ptx.multiply_each(z, [own[i] for i in range(each)], paired=True)
        column = first + subtile * each
        halves, words = [], cute.recast_tensor(rC, Uint32)
        for start in range(0, each, PAIR_K):
            blocks = [z[start : start + SF_VEC_SIZE], z[start + SF_VEC_SIZE : start + PAIR_K]]
            pair = ptx.e4m3_bytes(*[arithmetic.sixth(_largest(block)) for block in blocks])
            for number, block in enumerate(blocks):
                scale = (pair >> Uint32(8)) if number else pair & Uint32(0xFF)
                at = (start + number * SF_VEC_SIZE) // CODES_OF_WORD
                words[at], words[at + 1] = arithmetic.codes(block, scale, has_fp4=True)
            wanted = row_exists * Int32(column + start < columns)
            halves.append(ptx.unless_zero(wanted, pair))
        self._store_scales(address, halves, column, columns, block_exists)

    @staticmethod
    def _store_scales(address: Any, halves: list[Any], column: Any, columns: Any, exists: Any) -> None:
        """Two bytes, one word, or two in blocks side by side; zeros up to the end of the last block."""
        if len(halves) == 1:
            to = address + Int64((column >> 6) * SF_BLOCK_BYTES + ((column >> 4) & 3))
            padded = (columns + (SF_BLOCK_K - 1)) >> 6
            wanted = exists * Int32((column >> 6) < padded)
            ptx.inline(_STORE_PAIR, "", ("l", to), ("r", wanted), ("r", halves[0]), effects=True)
            return
        for number in range(0, len(halves), 2):
            at = column + number * PAIR_K
            word = halves[number] | (halves[number + 1] << Uint32(16))
            wanted = exists * Int32(at < columns)
            ptx.store_if(address + Int64((at >> 6) * SF_BLOCK_BYTES), [word], wanted)


def _largest(values: list[Any]) -> Any:
    """The largest magnitude, NaN if there is one: of three at a time, which sm_100 can."""
    while len(values) > 2:
        whole = len(values) // 3 * 3
        values = [_largest_of_three(*values[i : i + 3]) for i in range(0, whole, 3)] + values[whole:]
    return ptx.larger_magnitude(*values) if len(values) == 2 else values[0]


def _largest_of_three(a: Any, b: Any, c: Any) -> Any:
    return ptx.inline("max.NaN.abs.f32 $0, $1, $2, $3;", "f", ("f", a), ("f", b), ("f", c))[0]
