"""dst = src for row-major fp16 matrices, one 64x64 tile per CTA through TMA: a kernel whose launch is easy
to predict.

Follows the protocol of a kernel module. ``cluster_shape_mn`` and ``use_pdl`` of the config act, other knobs
do not. Grid: (tiles along M, rounded up to whole clusters; tiles along N; 1). Shared memory: barrier, tile
at 1024.
"""

# ruff: noqa: ANN201, ANN204 - the DSL reads return annotations as C types

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.runtime import make_ptr
from cutlass.memory import SmemAllocator

from kernel_space.core.arguments import Argument

TILE = 64  # rows and columns; a row is 128 bytes, the span of the widest swizzle
THREADS = 32

ARGUMENTS = (
    Argument("src", "pointer"),
    Argument("dst", "pointer"),
    Argument("m", "int32"),
    Argument("n", "int32"),
    Argument("stream", "stream"),
)


def host_function(config: Any, problem_class: Any, arch: Any) -> tuple[Any, tuple[Any, ...]]:
    pointer = make_ptr(cutlass.Float16, 0, cute.AddressSpace.gmem, assumed_align=16)
    copy = TmaCopy(cluster_m=config.cluster_shape_mn[0], use_pdl=config.use_pdl)
    return copy, (pointer, pointer, cutlass.Int32(0), cutlass.Int32(0), cuda.CUstream(0))


class TmaCopy:
    def __init__(self, *, cluster_m: int, use_pdl: bool) -> None:
        self.cluster_m = cluster_m
        self.use_pdl = use_pdl

    @cute.jit
    def __call__(
        self, src: cute.Pointer, dst: cute.Pointer, m: cutlass.Int32, n: cutlass.Int32, stream: cuda.CUstream
    ):
        layout = cute.make_layout((m, n), stride=(n, 1))
        smem_layout = cute.make_composed_layout(
            cute.make_swizzle(3, 4, 3), 0, cute.make_layout((TILE, TILE), stride=(TILE, 1))
        )
        load_atom, m_src = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SOp(), cute.make_tensor(src, layout), smem_layout, (TILE, TILE)
        )
        store_atom, m_dst = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(), cute.make_tensor(dst, layout), smem_layout, (TILE, TILE)
        )

        @cute.struct
        class Storage:
            barrier: cute.struct.MemRange[cutlass.Int64, 1]
            tile: cute.struct.Align[cute.struct.MemRange[cutlass.Float16, TILE * TILE], 1024]

        self.storage = Storage
        grid = (cute.round_up(cute.ceil_div(m, TILE), self.cluster_m), cute.ceil_div(n, TILE), 1)
        self.kernel(load_atom, m_src, store_atom, m_dst, smem_layout).launch(
            grid=grid,
            block=(THREADS, 1, 1),
            cluster=(self.cluster_m, 1, 1),
            stream=stream,
            use_pdl=self.use_pdl,
        )

    @cute.kernel
    def kernel(
        self,
        load_atom: cute.CopyAtom,
        m_src: cute.Tensor,
        store_atom: cute.CopyAtom,
        m_dst: cute.Tensor,
        smem_layout: cute.ComposedLayout,
    ):
        tile_m, tile_n, _ = cute.arch.block_idx()
        storage = SmemAllocator().allocate(self.storage)
        barrier = storage.barrier.data_ptr()
        with cute.arch.elect_one():
            cute.arch.mbarrier_init(barrier, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.barrier()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, TILE * TILE * 2)
        s_tile = storage.tile.get_tensor(smem_layout.outer, swizzle=smem_layout.inner)
        s_load, g_load = self.partition(load_atom, s_tile, m_src)
        s_store, g_store = self.partition(store_atom, s_tile, m_dst)
        cute.copy(load_atom, g_load[(None, tile_m, tile_n)], s_load, tma_bar_ptr=barrier)
        cute.arch.mbarrier_wait(barrier, 0)
        cute.copy(store_atom, s_store, g_store[(None, tile_m, tile_n)])
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0)

    @cute.jit
    def partition(self, atom: cute.CopyAtom, s_tile: cute.Tensor, m_whole: cute.Tensor):
        g_tiles = cute.local_tile(m_whole, (TILE, TILE), (None, None))
        return cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(s_tile, 0, 2), cute.group_modes(g_tiles, 0, 2)
        )
