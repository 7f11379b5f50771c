"""What all sm_90a kernels with TMA have in common: descriptors of the operands, views of their slots, barriers."""

from typing import Any

import cutlass
import cutlass.memory as memory
from cutlass import Int32, cute
from cutlass.cute.nvgpu import cpasync

from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import (
    SF_BLOCK_K,
    SF_BLOCK_ROWS,
    SF_BLOCK_WORDS,
    LayoutsSm90a,
)


class TmaSm90a:
    """Mixin of a kernel class with ``config``, ``problem_class`` and ``_layouts()``."""

    config: Any
    problem_class: Any

    @staticmethod
    def _load_op(multicast: int) -> Any:
        return (
            cpasync.CopyBulkTensorTileG2SMulticastOp() if multicast > 1 else cpasync.CopyBulkTensorTileG2SOp()
        )

    def _tma_packed(self, box: Any, ptr: cute.Pointer, extent: Int32, k: Int32, multicast: int) -> Any:
        """Packed codes as bytes, ``[extent, K/2]``."""
        packed_k = cute.assume(k // 2, 16)
        codes = cute.recast_ptr(ptr, dtype=cutlass.Uint8)
        gmem = cute.make_tensor(codes, cute.make_layout((extent, packed_k), stride=(packed_k, 1)))
        tiler = (cute.size(box, mode=[0]), cute.size(box, mode=[1]))
        return cpasync.make_tiled_tma_atom(self._load_op(multicast), gmem, box, tiler, multicast)

    def _tma_scales(self, lay: LayoutsSm90a, smem: Any, ptr: cute.Pointer, extent: Int32, k: Int32) -> Any:
        """Scale-factor blocks as ``[row blocks, K blocks, 128 words]``.

        Tiles that do not start at a block boundary share blocks: the coordinates of row blocks overlap, so that tile
        coordinate i begins at block i.
        """
        blocks, k_blocks = cute.ceil_div(extent, SF_BLOCK_ROWS), cute.ceil_div(k, SF_BLOCK_K)
        words = cute.recast_ptr(ptr, dtype=cutlass.Int32)
        stride = (k_blocks * SF_BLOCK_WORDS, SF_BLOCK_WORDS, 1)
        gmem = cute.make_tensor(words, cute.make_layout((blocks, k_blocks, SF_BLOCK_WORDS), stride=stride))
        box = cute.slice_(smem, (None, None, None, 0))
        per_tile = cute.size(smem, mode=[0])
        tiler = (per_tile, lay.sf_k_blocks, SF_BLOCK_WORDS)
        atom, coords = cpasync.make_tiled_tma_atom(self._load_op(1), gmem, box, tiler)
        shape, stride = coords.shape, coords.stride
        overlapping = cute.make_layout(
            ((per_tile, shape[0]), shape[1], shape[2]), stride=((stride[0], stride[0]), stride[1], stride[2])
        )
        return atom, cute.make_tensor(coords.iterator, overlapping)

    def _tma_lora(self, box: Any, ptr: cute.Pointer, extent: Int32, sharers: int = 1) -> Any:
        """Slices of a LoRA operand ``[extent, R]``; with several sharers a load writes to all of them.

        Coordinates go on beyond R where slices do (R = 16): those of a tensor of one slice would be 0 for the second.
        """
        lay, r = self._layouts(), self.problem_class.r
        gmem = cute.make_tensor(ptr, cute.make_layout((extent, r), stride=(r, 1)))
        tiler = (cute.size(box, mode=[0]), cute.size(box, mode=[1]))
        atom, coords = cpasync.make_tiled_tma_atom(self._load_op(sharers), gmem, box, tiler)
        slices = cute.make_layout((extent, lay.num_lora_slices * lay.lora_k), stride=coords.stride)
        return atom, cute.make_tensor(coords.iterator, slices)

    @staticmethod
    def _partition(atom: Any, smem: cute.Tensor, gmem: cute.Tensor, tiler: Any) -> Any:
        """TMA views (bytes, slot) of SMEM and (bytes, tile, k-tile) of global memory."""
        tiled = cute.local_tile(gmem, tiler, (None, None))
        return cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(smem, 0, 2), cute.group_modes(tiled, 0, 2)
        )

    @staticmethod
    def _partition_scales(
        lay: LayoutsSm90a, atom: Any, smem: cute.Tensor, gmem: cute.Tensor, blocks: int
    ) -> Any:
        tiler = (blocks, lay.sf_k_blocks, 128)
        tiled = cute.local_tile(gmem, tiler, (None, None, 0))
        return cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(smem, 0, 3), cute.group_modes(tiled, 0, 3)
        )

    # ------------------------------------------------------------ dequantizing warps

    @staticmethod
    def _allocate(lay: LayoutsSm90a) -> dict[str, Any]:
        """Shared memory by the names of the layouts."""
        smem = memory.SmemAllocator()
        buffers = {}
        for region in lay.allocations():
            layout, swizzle = region.layout, None
            if isinstance(layout, cute.ComposedLayout):
                layout, swizzle = layout.outer, layout.inner
            buffers[region.name] = smem.allocate_tensor(region.dtype, layout, region.align, swizzle)
        return buffers

    @staticmethod
    def _init_each(barriers: Any) -> None:
        for barrier, arrivals in barriers:
            cute.arch.mbarrier_init(barrier, arrivals)

    @staticmethod
    def _arrive(barrier: Any) -> None:
        """One arrival for the whole warp, after all its lanes are done."""
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(barrier)
