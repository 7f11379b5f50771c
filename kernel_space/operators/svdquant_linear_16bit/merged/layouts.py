"""Shared memory of both kernels of ``merged``: what they allocate and what the budget reads back."""

import dataclasses
from typing import Any

import cutlass
import cutlass.utils.hopper_helpers as sm90_utils
from cutlass import cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K
from kernel_space.operators.svdquant_gemm.parts.allocations import (
    ACC_DTYPE,
    HALF_DTYPES,
    MBARRIER_BYTES,
    Allocation,
    smem_rows,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import MMA_ROWS
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import (
    SWIZZLE_ALIGN,
    WARP_ROWS,
    WARPS_PER_GROUP,
    LayoutsSm90a,
    lora_slice_k,
)
from kernel_space.operators.svdquant_linear_16bit.merged.config import MergingConfig

ROWS, ROWS_OF_LARGE_R, LARGE_R = (
    128,
    64,
    256,
)  # of a CTA of the first kernel: lora_up of all its rows is in SMEM
MOST_SLOTS, SLOTS_OF_LARGE_R = 3, 2  # of lora_down: with R = 128 two CTAs fit an SM
HALF_BYTES = 2
MERGE = "merge"  # the ring that rows of the first kernel are counted by: none of the second's


@dataclasses.dataclass(frozen=True)
class _Class:
    """What ``LayoutsSm90a`` asks of a problem's class; LoRA is over before its GEMM begins."""

    lora_dtype: str
    out_dtype: str
    activation: str
    r: int = 0


class ProductLayouts(LayoutsSm90a):
    """Of the second kernel: one ring, whose slots hold 128 bytes of K of merged weights and of x."""

    def __init__(self, config: MergingConfig, problem_class: ProblemClass):
        self.operand = self._operand_dtype(problem_class)
        plain: Any = _Class(problem_class.dtype, problem_class.dtype, problem_class.activation)
        super().__init__(config, plain)

    def _operand_dtype(self, problem_class: ProblemClass) -> Any:
        """Of merged weights and of x as they are multiplied."""
        return HALF_DTYPES[problem_class.dtype]

    def _make_mma(self) -> None:
        self.tiled_mma = sm90_utils.make_trivial_tiled_mma(
            self.operand,
            self.operand,
            OperandMajorMode.K,
            OperandMajorMode.K,
            ACC_DTYPE,
            (1, 1, 1),
            (MMA_ROWS, self.columns),
            warpgroup.OperandSource.SMEM,
        )
        self.acc_shape = self.tiled_mma.partition_shape_C((MMA_ROWS, self.columns))  # of one row block

    def _make_rings(self) -> None:
        slots, rows, columns = self.config.num_ab_stage, (self.rows, self.k), (self.columns, self.k)
        self.a_box = self.k_major_box(self.operand, "K_SW128", rows)
        self.b_box = self.k_major_box(self.operand, "K_SW128", columns)
        self.a = self._k_major(self.operand, "K_SW128", rows, slots)
        self.b = self._k_major(self.operand, "K_SW128", columns, slots)
        self.slot_bytes = (self.rows + self.columns) * self.k * self.operand.width // 8

    def allocations(self) -> list[Allocation]:
        """Shared memory in the order in which the kernel lays it out."""
        return [
            Allocation("weights", self.operand, self.a, "ab", SWIZZLE_ALIGN),
            Allocation("x", self.operand, self.b, "ab", SWIZZLE_ALIGN),
            Allocation("C", self.c_dtype, self.c, "c", self.c_align),
            *(
                Allocation(name, cutlass.Int64, cute.make_layout(count), ring, MBARRIER_BYTES)
                for name, count, ring in self.barriers()
            ),
        ]

    def barriers(self) -> list[tuple[str, int, str]]:
        """mbarrier arrays (name, count, ring); a full and an empty barrier per ring slot."""
        return [(f"ab_{side}", self.config.num_ab_stage, "ab") for side in ("full", "empty")]


class MergeLayouts:
    """Of the first kernel: lora_up of its rows, a ring of chunks of lora_down, 1 / smooth of all its chunks."""

    def __init__(self, config: MergingConfig, problem_class: ProblemClass):
        self.half = HALF_DTYPES[problem_class.dtype]
        self.is_bf16 = problem_class.dtype == "bf16"
        self.merged_dtype = self._merged_dtype()
        self.merged_bytes = self.merged_dtype.width // 8
        self.r = problem_class.r
        self.chunks = config.merge_chunks
        self.slots = min(self.chunks, SLOTS_OF_LARGE_R if self.r > LARGE_R else MOST_SLOTS)  # of lora_down
        self.rows = ROWS_OF_LARGE_R if self.r > LARGE_R else ROWS
        self.warps = self.rows // MMA_ROWS * WARPS_PER_GROUP
        self.threads = self.warps * 32
        self.chunk_bytes = self.r * CHUNK_K * HALF_BYTES  # of packed lora_down
        self.staged = cute.make_layout(self.warps * WARP_ROWS * CHUNK_K)
        self.inverse = cute.make_layout(self.chunks * CHUNK_K)
        if self.r:
            self._make_lora()

    def _merged_dtype(self) -> Any:
        """Of an element as it is written."""
        return self.half

    def _make_lora(self) -> None:
        self.slice_k = lora_slice_k(self.r)
        self.slices = -(-self.r // self.slice_k)
        kind = {16: "K_SW32", 32: "K_SW64", 64: "K_SW128"}[self.slice_k]
        self.up_box = LayoutsSm90a.k_major_box(self.half, kind, (self.rows, self.slice_k))
        self.up_bytes = self.slices * self.rows * self.slice_k * HALF_BYTES
        atom = warpgroup.make_smem_layout_atom(getattr(warpgroup.SmemLayoutAtomKind, kind), self.half)
        self.up = cute.tile_to_shape(atom, (self.rows, self.slice_k, self.slices), order=(0, 1, 2))
        # Packed lora_down (``packing.py``) has rows of 64 K for each of R, in the swizzle of a K that is contiguous.
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.MN_SW128, self.half)
        self.down = cute.tile_to_shape(atom, (CHUNK_K, self.r, self.slots), order=(0, 1, 2))

    def make_mma(self) -> Any:
        """Of 64 rows and a chunk: anew for each loop in which it changes whether it accumulates."""
        return sm90_utils.make_trivial_tiled_mma(
            self.half,
            self.half,
            OperandMajorMode.K,
            OperandMajorMode.MN,
            ACC_DTYPE,
            (1, 1, 1),
            (MMA_ROWS, CHUNK_K),
            warpgroup.OperandSource.SMEM,
        )

    def allocations(self) -> list[Allocation]:
        """Shared memory in the order in which the kernel lays it out."""
        regions = []
        if self.r:
            regions += [
                Allocation("lora_up", self.half, self.up, MERGE, SWIZZLE_ALIGN),
                Allocation("lora_down", self.half, self.down, MERGE, SWIZZLE_ALIGN),
            ]
        regions += [
            Allocation("merged", self.merged_dtype, self.staged, MERGE, SWIZZLE_ALIGN),
            Allocation("1 / smooth", cutlass.Float32, self.inverse, MERGE, 16),
        ]
        if self.r:
            regions += [
                Allocation(name, cutlass.Int64, cute.make_layout(count), MERGE, MBARRIER_BYTES)
                for name, count in (("up_full", 1), ("full", self.slots), ("empty", self.slots))
            ]
        return regions


class MergedLayouts:
    """Of both kernels, for the budget."""

    def __init__(self, config: MergingConfig, problem_class: ProblemClass):
        self.product = ProductLayouts(config, problem_class)
        self.merge = MergeLayouts(config, problem_class)

    def allocations(self) -> list[Allocation]:
        """Of the first kernel, then of the second."""
        return self.merge.allocations() + self.product.allocations()

    def footprint(self) -> dict[str, Any]:
        """Fields of ``budget.Footprint`` when every stage count is 1; the first kernel's have a ring of their own."""
        return {"smem": smem_rows(self.allocations())}
