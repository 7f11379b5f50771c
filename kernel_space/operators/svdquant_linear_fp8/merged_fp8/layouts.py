"""Shared memory of both kernels of ``merged_fp8``: what they allocate and what the budget reads back."""

from typing import Any

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import warpgroup

from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K
from kernel_space.operators.svdquant_gemm.parts.allocations import MBARRIER_BYTES, Allocation
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import MMA_ROWS
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import SWIZZLE_ALIGN, WARP_ROWS, LayoutsSm90a
from kernel_space.operators.svdquant_linear_16bit.merged.layouts import (
    MERGE,
    MergedLayouts,
    MergeLayouts,
    ProductLayouts,
)
from kernel_space.operators.svdquant_linear_fp8.merged_fp8.config import MergedFp8Config

FP8 = cutlass.Float8E4M3FN
BOX_BYTES = 64  # of a row of packed codes: two chunks
SLOTS = 2  # of lora_down: one that is multiplied, one on its way
BOXES = 3  # of packed codes: one that is merged, two on their way
HELD = 4  # vectors of x that a thread holds, of as many rows at most


class ProductFp8Layouts(ProductLayouts):
    """Of the second kernel, whose operands are FP8."""

    config: MergedFp8Config

    def _operand_dtype(self, problem_class: ProblemClass) -> Any:
        return FP8

    def _make_store(self) -> None:
        """A box for each 64 columns of y: all rows of x of a tile, 128 bytes each. Not where y is gated."""
        super()._make_store()
        self.column_scales = cute.make_layout((self.columns, self.config.consumer_warpgroups))
        if self.gated:
            return
        self.store_shape = (self.columns, MMA_ROWS)
        self.c_box = self.k_major_box(self.c_dtype, "K_SW128", self.store_shape)
        self.c_align = SWIZZLE_ALIGN
        self.c_box_elements = self.columns * MMA_ROWS
        self.c = cute.make_layout(self.rows * self.columns)

    def allocations(self) -> list[Allocation]:
        """Shared memory in the order in which the kernel lays it out. Each warpgroup has its own scales of x."""
        scales = Allocation("column scales", cutlass.Float32, self.column_scales, "one", 16)
        return [*super().allocations(), scales]


class MergeFp8Layouts(MergeLayouts):
    """Of the first kernel: merged weights are bytes; for rows of x there are maxima of each warp."""

    def __init__(self, config: MergedFp8Config, problem_class: ProblemClass):
        super().__init__(config, problem_class)
        self.codes_box = LayoutsSm90a.k_major_box(cutlass.Uint8, "K_SW64", (self.rows, BOX_BYTES))
        self.codes_bytes = self.rows * BOX_BYTES
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW64, cutlass.Uint8)
        # What a warp merges of a chunk, twice: while one is stored the next is written.
        self.store_box = LayoutsSm90a.k_major_box(cutlass.Uint8, "K_SW64", (WARP_ROWS, CHUNK_K))
        self.staged = cute.tile_to_shape(atom, (WARP_ROWS, CHUNK_K, 2 * self.warps), order=(0, 1, 2))
        self.boxes = min(-(-self.chunks // 2), BOXES)
        self.codes = cute.tile_to_shape(atom, (self.rows, BOX_BYTES, self.boxes), order=(0, 1, 2))

    def _merged_dtype(self) -> Any:
        return cutlass.Uint8

    def _make_lora(self) -> None:
        self.slots = min(self.chunks, SLOTS)
        super()._make_lora()

    def allocations(self) -> list[Allocation]:
        """Shared memory in the order in which the kernel lays it out."""
        maxima = cute.make_layout((HELD, self.warps, 2))
        return [
            Allocation("codes", cutlass.Uint8, self.codes, MERGE, SWIZZLE_ALIGN),
            *super().allocations(),
            Allocation("maxima", cutlass.Float32, maxima, MERGE, 16),
            *(
                Allocation(
                    f"codes_{side}", cutlass.Int64, cute.make_layout(self.boxes), MERGE, MBARRIER_BYTES
                )
                for side in ("full", "empty")
            ),
        ]


class MergedFp8Layouts(MergedLayouts):
    """Of both kernels, for the budget."""

    def __init__(self, config: MergedFp8Config, problem_class: ProblemClass):
        self.product = ProductFp8Layouts(config, problem_class)
        self.merge = MergeFp8Layouts(config, problem_class)
