"""Layouts of the sm_90a kernels with rings: what they allocate and what the budget reads back.

Both sides build a ``LayoutsSm90a`` from the same config and class, so a budget cannot disagree with the kernel.
Constructing one needs an MLIR context (inside ``@cute.jit``/``@cute.kernel``, or a context of the caller's own).
"""

import math
from typing import Any

import cutlass
import cutlass.utils.hopper_helpers as sm90_utils
from cutlass import cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.parts.activation import GATE_COLUMNS, SWIGLU
from kernel_space.operators.svdquant_gemm.parts.allocations import (
    ACC_DTYPE,
    HALF_DTYPES,
    MBARRIER_BYTES,
    Allocation,
    smem_rows,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import MMA_ROWS, RingsConfig

DQ_DTYPE = cutlass.Float16
DQ_K = 64  # K elements of one dq slot: 128 bytes a row, one swizzle span
MMA_K = 16
WARPS_PER_GROUP = 4
GROUP_ROWS = 128  # rows a warpgroup dequantizes at a time, one a thread
MAX_LOOSE_ROWS = 48  # beyond, a second row for some threads is cheaper
SF_BLOCK_ROWS = 128
SF_BLOCK_K = 64
SF_BLOCK_WORDS = 128  # 512 bytes as 32-bit words: a TMA box extent must not exceed 256
SF_BLOCK_BYTES = 512
WARP_ROWS = 16  # rows of y one warp holds of a wgmma
SWIZZLE_ALIGN = 1024
TMA_ALIGN = 128
STORE_COLUMNS = 64  # columns of one swizzled store box, at most


def lora_slice_k(r: int) -> int:
    """Columns of R in one LoRA slice: a swizzle span of 32, 64 or 128 bytes, two slices or more where R allows."""
    return 16 if r <= 32 else 32 if r <= 64 else 64


def sf_row_blocks(extent: int) -> int:
    """128-row blocks of scale factors that ``extent`` rows, starting at any multiple of ``extent``, can touch."""
    return -(-(extent + SF_BLOCK_ROWS - math.gcd(extent, SF_BLOCK_ROWS)) // SF_BLOCK_ROWS)


def store_span(staged: int, whole: bool) -> int:
    """Bytes of a swizzled row of a box of y, 0 without swizzle. ``whole``: all columns of a tile are staged at once."""
    columns = STORE_COLUMNS if whole else math.gcd(staged, STORE_COLUMNS)
    return 0 if staged % columns else 2 * columns


class LayoutsSm90a:
    """Tiled MMAs and staged SMEM layouts of a resolved config."""

    def __init__(self, config: RingsConfig, problem_class: ProblemClass):
        self.config = config
        # Whether the column operand comes expanded from global memory: no packed columns, no dequantizing warps.
        self.expanded = config.expands_act
        self.r = problem_class.r
        self.lora_dtype = HALF_DTYPES[problem_class.lora_dtype]
        self.c_dtype = HALF_DTYPES[problem_class.out_dtype]
        self.activation = problem_class.activation
        self.gated = self.activation == SWIGLU  # of 16 columns of the product y has 8
        self.rows, self.columns, self.k = config.tile_mnk
        self.group_rows = MMA_ROWS * config.row_blocks
        # From the rows of one consumer warpgroup to those of the next: with ping-pong both have all rows of a tile.
        self.rows_between_groups = 0 if config.pingpong else self.group_rows
        self.num_consumer_warps = WARPS_PER_GROUP * config.consumer_warpgroups
        # Consumer warps that read a slot of a ring: those of the warpgroups that share its tile.
        self.num_reading_warps = WARPS_PER_GROUP * config.warpgroups_of_tile
        self.num_dequant_groups = 0 if self.expanded else config.num_dequant_warpgroups
        self.num_dequant_warps = WARPS_PER_GROUP * self.num_dequant_groups
        self.lora_k = lora_slice_k(self.r)
        # ptxas (13.0) serializes the wgmma of the main loop beside a LoRA loop of a single turn (warning C7512; 15 %
        # at R = 32), so slices are narrow enough for two; the second of R = 16 lies beyond R, where TMA loads zeros.
        self.num_lora_slices = max(2, -(-self.r // self.lora_k)) if self.r else 0
        # Rows of the column operand beyond a multiple of the dequantizing threads are shared out by words.
        loose = self.columns % GROUP_ROWS if self.columns > GROUP_ROWS else 0
        self.loose_rows = loose if config.num_dequant_warpgroups == 1 and loose <= MAX_LOOSE_ROWS else 0
        # dq slots that one packed slot fills.
        self.dq_per_k_tile = self.k // DQ_K
        self._make_mma()
        self._make_rings()
        self._make_store()

    def _make_mma(self) -> None:
        def make(dtype: Any, source: Any) -> Any:
            return sm90_utils.make_trivial_tiled_mma(
                dtype,
                dtype,
                OperandMajorMode.K,
                OperandMajorMode.K,
                ACC_DTYPE,
                (1, 1, 1),
                (MMA_ROWS, self.columns),
                source,
            )

        self.tiled_mma = make(DQ_DTYPE, warpgroup.OperandSource.RMEM)
        self.lora_mma = make(self.lora_dtype, warpgroup.OperandSource.SMEM)
        self.acc_shape = self.tiled_mma.partition_shape_C((MMA_ROWS, self.columns))  # of one row block

    def _make_rings(self) -> None:
        config = self.config
        packed_k = self.k // 2
        kind = {32: "K_SW32", 64: "K_SW64", 128: "K_SW128"}[packed_k]
        self.a_box = self.k_major_box(cutlass.Uint8, kind, (self.rows, packed_k))
        self.b_box = self.k_major_box(cutlass.Uint8, kind, (self.columns, packed_k))
        self.a = self._k_major(cutlass.Uint8, kind, (self.rows, packed_k), config.num_ab_stage)
        self.b = self._k_major(cutlass.Uint8, kind, (self.columns, packed_k), config.num_ab_stage)
        self.sf_k_blocks = self.k // SF_BLOCK_K
        self.sfa_row_blocks = sf_row_blocks(self.rows)
        self.sfb_row_blocks = sf_row_blocks(self.columns)
        self.sfa = self._scales(self.sfa_row_blocks)
        self.sfb = self._scales(self.sfb_row_blocks)
        # Bytes of one slot of each ring.
        self.a_bytes, self.b_bytes = self.rows * packed_k, self.columns * packed_k
        self.sfa_bytes = self.sfa_row_blocks * self.sf_k_blocks * SF_BLOCK_BYTES
        self.sfb_bytes = self.sfb_row_blocks * self.sf_k_blocks * SF_BLOCK_BYTES
        self.ab_bytes = self.a_bytes + self.sfa_bytes
        if not self.expanded:
            self.ab_bytes += self.b_bytes + self.sfb_bytes
        self.dq_bytes = self.columns * DQ_K * 2
        # Bytes of a LoRA slice by operand; expanded activations let its columns pass through the dq ring.
        self.lora_row_bytes, self.lora_column_bytes = (
            self.rows * self.lora_k * 2,
            self.columns * self.lora_k * 2,
        )
        self.dq = self._k_major(DQ_DTYPE, "K_SW128", (self.columns, DQ_K), config.num_dq_stage)
        self.dq_box = self.k_major_box(DQ_DTYPE, "K_SW128", (self.columns, DQ_K))
        if self.num_lora_slices:
            stages = config.num_lora_stage
            kind = {16: "K_SW32", 32: "K_SW64", 64: "K_SW128"}[self.lora_k]
            self.lora_a_box = self.k_major_box(self.lora_dtype, kind, (self.rows, self.lora_k))
            self.lora_b_box = self.k_major_box(self.lora_dtype, kind, (self.columns, self.lora_k))
            self.lora_a = self._k_major(self.lora_dtype, kind, (self.rows, self.lora_k), stages)
            self.lora_b = self._k_major(self.lora_dtype, kind, (self.columns, self.lora_k), stages)
            outer = self.lora_b_box.outer
            # Slices as slots of the dq ring.
            self.lora_in_dq = cute.make_layout(
                (*outer.shape, config.num_dq_stage), stride=(*outer.stride, self.columns * DQ_K)
            )

    @staticmethod
    def _k_major(dtype: Any, kind: str, shape: tuple[int, int], stages: Any) -> Any:
        atom = warpgroup.make_smem_layout_atom(getattr(warpgroup.SmemLayoutAtomKind, kind), dtype)
        return cute.tile_to_shape(atom, (*shape, stages), order=(0, 1, 2))

    @staticmethod
    def k_major_box(dtype: Any, kind: str, shape: tuple[int, int]) -> Any:
        """One slot of ``_k_major``. Slicing one out of a ring of a single slot of 13 atoms crashes the DSL (4.8.1)."""
        atom = warpgroup.make_smem_layout_atom(getattr(warpgroup.SmemLayoutAtomKind, kind), dtype)
        return cute.tile_to_shape(atom, shape, order=(0, 1))

    def _scales(self, row_blocks: int) -> Any:
        shape = (row_blocks, self.sf_k_blocks, SF_BLOCK_WORDS, self.config.num_ab_stage)
        return cute.make_ordered_layout(shape, order=(2, 1, 0, 3))

    def _make_store(self) -> None:
        """One warp stores 16 rows of a tile at a time, ``staged_columns`` of them: one box, or swizzled ones.

        Under swap_ab a row of the accumulator is a column of y: one box of 16 columns of y. With expanded activations a
        warp only transposes such a box in SMEM. Gated columns of y are half as many.
        """
        stages, staged = self.config.num_c_stage, self.config.staged_columns
        self.slots_per_row = -(-self.columns // staged)
        whole, rows = staged == self.columns, WARP_ROWS
        if self.gated and self.config.swap_ab:
            rows = WARP_ROWS // 2
        elif self.gated:
            staged //= 2
            whole = whole or staged == GATE_COLUMNS
        self.store_span = 0 if self.config.swap_ab else store_span(staged, whole)
        columns = self.store_span // 2 if self.store_span else staged
        self.store_shape = (columns, rows) if self.config.swap_ab else (rows, columns)
        self.store_columns = columns
        self.boxes_per_slot = staged // columns
        if self.store_span:
            kind = {32: "K_SW32", 64: "K_SW64", 128: "K_SW128"}[self.store_span]
            self.c_box = self.k_major_box(self.c_dtype, kind, self.store_shape)
        else:
            self.c_box = cute.make_layout(self.store_shape, stride=(self.store_shape[1], 1))
        self.c_align = 8 * self.store_span or TMA_ALIGN  # of a box: a swizzle repeats every eight rows
        self.c_box_elements = rows * columns
        boxes = self.num_consumer_warps * self.boxes_per_slot * stages
        self.c = cute.make_layout(boxes * self.c_box_elements)
        self.affine_extent = self.rows if self.config.swap_ab else self.columns
        # Every consumer warpgroup keeps a copy of its own, so that none waits for the other.
        self.affine = cute.make_layout(self.affine_extent * self.config.consumer_warpgroups)

    def allocations(self) -> list[Allocation]:
        """Shared memory in the order in which the kernel lays it out."""
        regions = [Allocation("dequantized", DQ_DTYPE, self.dq, "dq", SWIZZLE_ALIGN)]
        if self.num_lora_slices:
            regions += [
                Allocation("LoRA rows", self.lora_dtype, self.lora_a, "lora", SWIZZLE_ALIGN),
                Allocation("LoRA columns", self.lora_dtype, self.lora_b, "lora", SWIZZLE_ALIGN),
            ]
        regions += [
            Allocation("rows", cutlass.Uint8, self.a, "ab", SWIZZLE_ALIGN),
            Allocation("columns", cutlass.Uint8, self.b, "ab", SWIZZLE_ALIGN),
            Allocation("C", self.c_dtype, self.c, "c", self.c_align),
            Allocation("row scales", cutlass.Int32, self.sfa, "ab", TMA_ALIGN),
            Allocation("column scales", cutlass.Int32, self.sfb, "ab", TMA_ALIGN),
            Allocation("wcscale", cutlass.Float32, self.affine, "one", 16),
            Allocation("bias", cutlass.Float32, self.affine, "one", 16),
        ]
        if self.expanded:
            dropped = ("columns", "column scales", "LoRA columns", "wcscale", "bias")
            regions = [region for region in regions if region.name not in dropped]
        regions += [
            Allocation(name, cutlass.Int64, cute.make_layout(count), ring, MBARRIER_BYTES)
            for name, count, ring in self.barriers()
        ]
        if self.config.split_k > 1:
            regions.append(Allocation("split-K flag", cutlass.Int32, cute.make_layout(1), "one", 4))
        return regions

    def footprint(self) -> dict[str, Any]:
        """Fields of ``budget.Footprint`` when every stage count is 1."""
        return {"smem": smem_rows(self.allocations())}

    def barriers(self) -> list[tuple[str, int, str]]:
        """mbarrier arrays (name, count, ring); a full and an empty barrier per ring slot."""
        rings = [("ab", self.config.num_ab_stage), ("dq", self.config.num_dq_stage)]
        if self.num_lora_slices:
            rings.append(("lora", self.config.num_lora_stage))
        return [(f"{name}_{side}", count, name) for name, count in rings for side in ("full", "empty")]
