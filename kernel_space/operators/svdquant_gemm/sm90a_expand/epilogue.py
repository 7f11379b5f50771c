"""Epilogue of the kernel ``sm90a_expand``: accumulators of y.T through small pieces of SMEM to rows of y."""

from typing import Any

import cutlass
from cutlass import Int32, Int64, Uint32, cute

from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import (
    FROM_DEQUANT_SCALE,
    finish_pair,
    load_shared,
    store_global_if,
    store_matrices,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import MMA_ROWS, WARP_ROWS, LayoutsSm90a


class EpilogueExpandSm90a:
    """Mixin of the consumer role."""

    config: Any

    @cute.jit
    def _load_affine(
        self,
        lay: LayoutsSm90a,
        vectors: Any,
        buffers: Any,
        tile_m: Int32,
        tile_n: Int32,
        n: Int32,
        thread: Int32,
        group: Int32,
    ):
        """wcscale and bias of this thread's rows into registers; nothing waits for them before the epilogue."""
        affine = buffers["affine"]
        sources = [cute.make_tensor(vector, cute.make_layout(n)) for vector in vectors]
        row = (
            tile_m * lay.rows
            + group * lay.rows_between_groups
            + thread // 32 * WARP_ROWS
            + cute.arch.lane_idx() // 4
        )
        for i in cutlass.range_constexpr(2 * self.config.row_blocks):
            index = cutlass.min(row + i // 2 * MMA_ROWS + i % 2 * 8, n - 1)
            for which in cutlass.range_constexpr(2):
                affine[which, i] = sources[which][index]

    @cute.jit
    def _store(
        self,
        lay: LayoutsSm90a,
        accs: Any,
        buffers: Any,
        store: Any,
        tile_m: Int32,
        tile_n: Int32,
        thread: Int32,
        group: Int32,
    ):
        """``acc * wcscale + bias`` in fp32, one rounding; a warp transposes ``staged_columns`` rows of 16 columns
        of y at a time and stores them.

        Full sectors of 32 bytes, no barrier beyond the warp: the other warpgroup goes on multiplying.
        """
        y, m, n = store
        lane = cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(thread // 32)
        piece = buffers["C"].iterator.toint() + (group * 4 + warp) * (lay.c_box_elements * 2)
        num_octets, staged = lay.columns // 8, self.config.staged_columns // 8
        affine = buffers["affine"]
        for i in cutlass.range_constexpr(2 * self.config.row_blocks):
            affine[0, i] = affine[0, i] * (1.0 / FROM_DEQUANT_SCALE)
        affine = cute.recast_tensor(affine, Uint32)
        # What this lane reads back of every piece: 16 bytes of row lane / 2 and of the 16th after it.
        half = lane % 2
        for block in cutlass.range_constexpr(self.config.row_blocks):
            column = (
                tile_m * lay.rows
                + group * lay.rows_between_groups
                + block * MMA_ROWS
                + warp * WARP_ROWS
                + half * 8
            )
            for first in cutlass.range_constexpr(0, num_octets, staged):
                octets = min(staged, num_octets - first)
                for octet in cutlass.range_constexpr(first, first + octets, 2):
                    values = self._finished(accs[block], affine, block, octet, min(2, first + octets - octet))
                    row = (octet - first + lane // 16) * 8 + lane % 8
                    store_matrices(piece_chunk(piece, row, lane // 8 % 2), values, transpose=True)
                cute.arch.sync_warp()
                for part in cutlass.range_constexpr((octets + 1) // 2):
                    row = part * 16 + lane // 2
                    y_row = tile_n * lay.columns + first * 8 + row
                    inside = (y_row < m) & (column < n)
                    if cutlass.const_expr(part * 2 + 1 >= octets):
                        # Eight rows are left: the upper lanes repeat what the lower ones read, and store nothing.
                        row = part * 16 + lane % 16 // 2
                        inside = inside & (lane < 16)
                    words = load_shared(piece_chunk(piece, row, half), 4)
                    address = y.toint() + (Int64(y_row) * n + column) * 2
                    store_global_if(address, words, inside)
                cute.arch.sync_warp()

    def _finished(
        self, acc: cute.Tensor, affine: cute.Tensor, block: int, first: int, count: int
    ) -> list[Any]:
        """Octets ``first`` .. of the accumulator's columns as 16-bit pairs, both halves of 8 rows each."""
        is_bf16 = self._layouts().c_dtype is cutlass.BFloat16
        values = []
        for octet in range(first, first + count):
            for half in range(2):
                low, high = acc[(0, half, octet), 0, 0], acc[(1, half, octet), 0, 0]
                scale, bias = affine[0, 2 * block + half], affine[1, 2 * block + half]
                values.append(finish_pair(low, high, (scale, scale), (bias, bias), is_bf16))
        return values


def piece_chunk(piece: Any, row: Any, half: Any) -> Any:
    """Address of 16-byte half ``half`` of a 32-byte row; rows 4 to 7 of eight swap theirs, against bank conflicts."""
    return piece + row * 32 + ((half ^ (row >> 2 & 1)) << 4)
