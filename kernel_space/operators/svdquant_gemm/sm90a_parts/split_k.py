"""Split-K: fp32 partial sums in the workspace, added in the order of the split index."""

from typing import Any

import cutlass
from cutlass import Float32, Int32, cute

from kernel_space.operators.svdquant_gemm.partials import COUNTER_BYTES, PARTIALS_ALIGN
from kernel_space.operators.svdquant_gemm.parts.allocations import ACC_DTYPE
from kernel_space.operators.svdquant_gemm.parts.tile_walk import TileWalk
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import LayoutsSm90a

GROUP_THREADS = 128
ALL_BARRIER = 7  # named barrier of all consumer warpgroups


class SplitKSm90a(TileWalk):
    """Mixin of the consumer role."""

    def _partials(
        self, lay: LayoutsSm90a, accs: Any, workspace: Any, tiles: Any, tile_m: Any, tile_n: Any, thread: Any
    ) -> Any:
        """fp32 partial sums of this thread (4, value / 4, row block, split) of one tile.

        The workspace holds one int32 counter per tile, then the partials; a warp's 16-byte accesses are contiguous.
        """
        shape_m, shape_n = self.config.cluster_shape_mn
        tiles_n = tiles[1] * shape_n
        num_tiles = tiles[0] * shape_m * tiles_n
        index = tile_m * tiles_n + tile_n
        threads = GROUP_THREADS * self.config.consumer_warpgroups
        values, blocks = cute.size(accs[0]), self.config.row_blocks
        first = (num_tiles * COUNTER_BYTES + PARTIALS_ALIGN - 1) // PARTIALS_ALIGN * PARTIALS_ALIGN
        base = cute.recast_ptr(workspace + cute.assume(first, PARTIALS_ALIGN), dtype=Float32)
        offset = cutlass.Int64(index) * (threads * values * blocks * self.split_k) + thread * 4
        layout = cute.make_layout(
            (4, values // 4, blocks, self.split_k),
            stride=(1, 4 * threads, threads * values, threads * values * blocks),
        )
        return cute.make_tensor((base + cute.assume(offset, 4)).align(16), layout)

    @cute.jit
    def _write_partials(
        self,
        lay: LayoutsSm90a,
        accs: Any,
        workspace: cute.Pointer,
        tiles: Any,
        tile_m: Int32,
        tile_n: Int32,
        split: Int32,
        thread: Int32,
    ):
        partials = self._partials(lay, accs, workspace, tiles, tile_m, tile_n, thread)
        for b in cutlass.range_constexpr(self.config.row_blocks):
            flat = cute.make_tensor(accs[b].iterator, cute.make_layout((4, cute.size(accs[b]) // 4)))
            cute.autovec_copy(flat, partials[(None, None, b, split)])

    @cute.jit
    def _is_last_split(
        self,
        lay: LayoutsSm90a,
        workspace: cute.Pointer,
        buffers: Any,
        tiles: Any,
        tile_m: Int32,
        tile_n: Int32,
        thread: Int32,
    ):
        """Count this split in; true in every consumer thread of the CTA that completes the tile.

        The barrier before the atomic makes the other threads' partials part of what thread 0 releases; the one after
        makes what it acquired visible to them.
        """
        flag = buffers["split-K flag"]
        shape_m, shape_n = self.config.cluster_shape_mn
        counter = cute.recast_ptr(workspace, dtype=Int32) + (tile_m * (tiles[1] * shape_n) + tile_n)
        threads = GROUP_THREADS * self.config.consumer_warpgroups
        cute.arch.barrier(barrier_id=ALL_BARRIER, number_of_threads=threads)
        if thread == 0:
            cute.arch.fence_acq_rel_gpu()
            arrived = cute.arch.atomic_add(counter, Int32(1), sem="acq_rel", scope="gpu")
            flag[0] = arrived
            if arrived == self.split_k - 1:
                # Ready for the next launch: every split of this tile has arrived.
                cute.make_tensor(counter, cute.make_layout(1))[0] = Int32(0)
            cute.arch.fence_acq_rel_gpu()
        cute.arch.barrier(barrier_id=ALL_BARRIER, number_of_threads=threads)
        return flag[0] == self.split_k - 1

    @cute.jit
    def _sum_partials(
        self,
        lay: LayoutsSm90a,
        accs: Any,
        workspace: cute.Pointer,
        tiles: Any,
        tile_m: Int32,
        tile_n: Int32,
        thread: Int32,
    ):
        """Sum in the order of the split index, whoever arrived last."""
        partials = self._partials(lay, accs, workspace, tiles, tile_m, tile_n, thread)
        piece = cute.make_rmem_tensor((4,), ACC_DTYPE)
        for b in cutlass.range_constexpr(self.config.row_blocks):
            flat = cute.make_tensor(accs[b].iterator, cute.make_layout((4, cute.size(accs[b]) // 4)))
            cute.autovec_copy(partials[(None, None, b, 0)], flat)
            for split in cutlass.range_constexpr(1, self.split_k):
                for vector in cutlass.range_constexpr(cute.size(accs[b]) // 4):
                    cute.autovec_copy(partials[(None, vector, b, split)], piece)
                    for i in cutlass.range_constexpr(4):
                        flat[i, vector] = flat[i, vector] + piece[i]
