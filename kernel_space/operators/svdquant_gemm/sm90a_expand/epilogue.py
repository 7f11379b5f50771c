"""Epilogue of the kernel ``sm90a_expand``: accumulators of y.T through small pieces of SMEM to rows of y."""

from typing import Any

import cutlass
from cutlass import Int32, Int64, Uint32, cute

from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import (
    FROM_DEQUANT_SCALE,
    finish_gated_pair,
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
        """``acc * wcscale + bias`` and its activation in fp32, one rounding; a warp transposes ``staged_columns`` rows
        of 16 columns of y (gated: 8) at a time and stores them.

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
        is_bf16 = lay.c_dtype is cutlass.BFloat16
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
                if cutlass.const_expr(lay.gated):
                    corner = (tile_n * lay.columns + first * 8, (column - half * 8) // 2)
                    values = [
                        self._gated(accs[block], affine, block, octet, is_bf16)
                        for octet in range(first, first + octets)
                    ]
                    self._store_gated(piece, values, (y, m, n // 2), corner)
                else:
                    for octet in cutlass.range_constexpr(first, first + octets, 2):
                        values = self._finished(
                            accs[block], affine, block, octet, min(2, first + octets - octet)
                        )
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

    @staticmethod
    def _gated(acc: cute.Tensor, affine: cute.Tensor, block: int, octet: int, is_bf16: bool) -> Any:
        """Of an octet of columns: rows 0 to 7 are gates of rows 8 to 15."""
        rows = [[acc[(e, half, octet), 0, 0] for e in range(2)] for half in range(2)]
        vectors = [tuple((affine[which, 2 * block + half],) * 2 for which in range(2)) for half in range(2)]
        return finish_gated_pair(*rows, *vectors, is_bf16)

    @staticmethod
    def _store_gated(piece: Any, values: list[Any], store: Any, corner: Any) -> None:
        """``values``: octets of rows of y, 8 columns each; transposed and stored from (row, column) ``corner`` on."""
        y, m, columns_of_y = store
        first_row, column = corner
        lane = cute.arch.lane_idx()
        for octet in range(0, len(values), 2):
            row = (octet + lane // 8 % 2) * 8 + lane % 8
            store_matrices(piece + row * 16, values[octet : octet + 2], transpose=True)
        cute.arch.sync_warp()
        for octet in range(0, len(values), 4):
            rows = 8 * min(4, len(values) - octet)
            row = octet * 8 + lane % rows
            y_row = first_row + row
            words = load_shared(piece + row * 16, 4)
            address = y.toint() + (Int64(y_row) * columns_of_y + column) * 2
            store_global_if(address, words, (lane < rows) & (y_row < m) & (column < columns_of_y))
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
                values.append(
                    finish_pair(
                        low, high, (scale, scale), (bias, bias), is_bf16, self.problem_class.activation
                    )
                )
        return values


def piece_chunk(piece: Any, row: Any, half: Any) -> Any:
    """Address of 16-byte half ``half`` of a 32-byte row; rows 4 to 7 of eight swap theirs, against bank conflicts."""
    return piece + row * 32 + ((half ^ (row >> 2 & 1)) << 4)
