"""Epilogue of ``merged_fp8``: sums times the scales of their rows of x, then y, by boxes.

The warps of a warpgroup fill a box of all rows of the tile and 64 columns of y, 128 bytes a row, which TMA stores while
the next tile is multiplied. Gated columns of y are half as many: then each warp stores its own, as ``sm90a_expand``.

| who | what of a tile |
|---|---|
| each thread | before the first product: scales of some rows of x to shared memory |
| warp 0 | after the last: waits until TMA has read what it stored before; all warps wait for that (named barrier) |
| each warp | writes its 16 columns (``stmatrix``), a fence to the async proxy; all warps meet |
| warp 0 | stores the boxes |

Scales of the next tile are written behind the second meeting, when all have read those of this one.
"""

from typing import Any

import cutlass
from cutlass import Float32, Int32, Uint32, cute
from cutlass.cute.nvgpu import cpasync

from kernel_space.operators.svdquant_gemm.sm90a_expand.epilogue import EpilogueExpandSm90a
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import MMA_ROWS
from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import (
    FROM_DEQUANT_SCALE,
    store_matrices,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.split_k import GROUP_THREADS
from kernel_space.operators.svdquant_linear_16bit.merged.merge import load_shared_pair
from kernel_space.operators.svdquant_linear_fp8.merged_fp8.layouts import ProductFp8Layouts

FIRST_BARRIER = 1  # named barrier of consumer warpgroup 0
BOX_ROW = 2 * MMA_ROWS  # bytes: 64 columns of y
LARGEST = 448.0  # of E4M3


class StoreFp8(EpilogueExpandSm90a):
    """Mixin of the consumer role. ``buffers`` has, besides shared memory, ``wpeak`` and ``scales`` of x."""

    config: Any

    @cute.jit
    def _load_affine(
        self,
        lay: ProductFp8Layouts,
        vectors: Any,
        buffers: Any,
        tile_m: Int32,
        tile_n: Int32,
        n: Int32,
        thread: Int32,
        group: Int32,
    ):
        """wcscale with what weights of a row were divided by, and bias, for which nothing waits before the epilogue;
        the scales of rows of x.
        """
        EpilogueExpandSm90a._load_affine(self, lay, vectors, buffers, tile_m, tile_n, n, thread, group)
        affine, wpeak = buffers["affine"], buffers["wpeak"]
        peaks = cute.make_rmem_tensor((2, 2 * self.config.row_blocks), Float32)
        EpilogueExpandSm90a._load_affine(
            self, lay, (wpeak, wpeak), {"affine": peaks}, tile_m, tile_n, n, thread, group
        )
        for i in cutlass.range_constexpr(2 * self.config.row_blocks):
            # What the epilogue's wcscale gives back, products of dequantized operands lack; here none is.
            affine[0, i] = affine[0, i] * (peaks[0, i] * (FROM_DEQUANT_SCALE / LARGEST))
        kept = buffers["column scales"]
        for step in cutlass.range_constexpr((lay.columns + GROUP_THREADS - 1) // GROUP_THREADS):
            at = step * GROUP_THREADS + thread
            if at < lay.columns:
                # Of rows beyond M there is something, which nobody stores.
                scale = buffers["scales"][tile_n * lay.columns + at]
                if cutlass.const_expr(lay.activation != "none"):
                    # Activations of two rows share a reciprocal: NaN of the one would be that of the other.
                    if tile_n * lay.columns + at >= cute.size(buffers["scales"]) - lay.columns:
                        scale = Float32(0.0)
                kept[at, group] = scale

    @cute.jit
    def _store(
        self,
        lay: ProductFp8Layouts,
        accs: Any,
        buffers: Any,
        store: Any,
        tile_m: Int32,
        tile_n: Int32,
        thread: Int32,
        group: Int32,
    ):
        """Sums times the scale of their row of x, then the rest."""
        if cutlass.const_expr(not lay.gated):
            if thread < 32:
                cute.arch.cp_async_bulk_wait_group(0, read=True)
        self._meet_group(group)
        scales = buffers["column scales"].iterator.toint() + group * (lay.columns * 4)
        for octet in cutlass.range_constexpr(lay.columns // 8):
            pair = load_shared_pair(scales + octet * 32 + cute.arch.lane_idx() % 4 * 8)
            for e in cutlass.range_constexpr(2):
                for b in cutlass.range_constexpr(self.config.row_blocks):
                    for half in cutlass.range_constexpr(2):
                        at = ((e, half, octet), 0, 0)
                        accs[b][at] = accs[b][at] * pair[e]
        if cutlass.const_expr(lay.gated):
            EpilogueExpandSm90a._store(self, lay, accs, buffers, store[0], tile_m, tile_n, thread, group)
            self._meet_group(group)
        else:
            self._store_boxes(lay, accs, buffers, store[1:], tile_m, tile_n, thread, group)

    @staticmethod
    def _tma_of_y(lay: ProductFp8Layouts, y: Any, m: Any, n: Any) -> tuple[Any, Any]:
        """Of boxes of y ``[M, N]``."""
        gmem = cute.make_tensor(y, cute.make_layout((m, n), stride=(cute.assume(n, 8), 1)))
        op = cpasync.CopyBulkTensorTileS2GOp()
        found: tuple[Any, Any] = cpasync.make_tiled_tma_atom(op, gmem, lay.c_box, lay.store_shape)
        return found

    @cute.jit
    def _store_boxes(
        self,
        lay: ProductFp8Layouts,
        accs: Any,
        buffers: Any,
        store: Any,
        tile_m: Int32,
        tile_n: Int32,
        thread: Int32,
        group: Int32,
    ):
        """Each row block of this warpgroup is a box."""
        atom, tensor = store
        lane = cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(thread // 32)
        affine = buffers["affine"]
        for i in cutlass.range_constexpr(2 * self.config.row_blocks):
            affine[0, i] = affine[0, i] * (1.0 / FROM_DEQUANT_SCALE)
        affine = cute.recast_tensor(affine, Uint32)
        for block in cutlass.range_constexpr(self.config.row_blocks):
            box = group * self.config.row_blocks + block
            base = buffers["C"].iterator.toint() + box * (lay.c_box_elements * 2)
            octets = lay.columns // 8
            for octet in cutlass.range_constexpr(0, octets, 2):
                values = self._finished(accs[block], affine, block, octet, min(2, octets - octet))
                row = (octet + lane // 16) * 8 + lane % 8
                piece = (warp * 2 + lane // 8 % 2) ^ (lane % 8)
                store_matrices(base + row * BOX_ROW + piece * 16, values, transpose=True)
        cute.arch.fence_proxy("async.shared", space="cta")
        self._meet_group(group)
        if warp == 0:
            gC = cute.local_tile(tensor, lay.store_shape, (None, None))
            for block in cutlass.range_constexpr(self.config.row_blocks):
                box = group * self.config.row_blocks + block
                source, target = cpasync.tma_partition(
                    atom,
                    0,
                    cute.make_layout(1),
                    cute.group_modes(self._box(lay, buffers, box), 0, 2),
                    cute.group_modes(gC, 0, 2),
                )
                column = tile_m * (lay.rows // MMA_ROWS) + box
                cute.copy(atom, source, target[(None, tile_n, column)])
            cute.arch.cp_async_bulk_commit_group()

    @staticmethod
    def _meet_group(group: Any) -> None:
        cute.arch.barrier(barrier_id=FIRST_BARRIER + group, number_of_threads=GROUP_THREADS)

    @staticmethod
    def _box(lay: ProductFp8Layouts, buffers: Any, index: Any) -> cute.Tensor:
        ptr = buffers["C"].iterator + index * lay.c_box_elements
        ptr = cute.recast_ptr(ptr.align(lay.c_align), lay.c_box.inner, dtype=lay.c_dtype)
        return cute.make_tensor(ptr, lay.c_box.outer)
