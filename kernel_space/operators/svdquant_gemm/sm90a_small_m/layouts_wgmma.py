"""Shared memory of the small-M kernel of sm_90a with wgmma: what it allocates and what the budget reads back.

"Rows" are rows of the register operand, "columns" rows of the other one; which of them are weights says
``register_operand``. Work comes in *units*: 128 elements of K, or 32 columns of R. Three rings hold them:

| region | slots | a slot |
|---|---|---|
| rows, columns | num_ab_stage | TMA boxes of one unit: swizzled rows of 64 bytes, of codes or for LoRA |
| row scales, column scales | num_ab_stage | whole blocks of 128 rows |
| dequantized | num_dq_stage | a unit of the columns as fp16 in two swizzled halves, or half of one; LoRA in one |

When nobody will read packed weights of a CTA any more, their ring receives the sums of the cluster's other CTAs.
Where its least slots are too small for them, more bytes follow it.
"""

from typing import Any

import cutlass
import cutlass.utils.hopper_helpers as sm90_utils
from cutlass import Float32, cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from kernel_space.operators.svdquant_gemm.parts.allocations import (
    HALF_DTYPES,
    MBARRIER_BYTES,
    Allocation,
    smem_rows,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import MMA_ROWS
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import (
    DQ_DTYPE,
    DQ_K,
    SF_BLOCK_BYTES,
    SF_BLOCK_K,
    SF_BLOCK_WORDS,
    SWIZZLE_ALIGN,
    TMA_ALIGN,
    WARPS_PER_GROUP,
    LayoutsSm90a,
    sf_row_blocks,
)
from kernel_space.operators.svdquant_gemm.sm90a_small_m.config import LEAST_WGMMA_STAGES
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.layouts import LANES, LORA_UNIT_K, UNIT_K

HALVES = UNIT_K // DQ_K
ROW_BYTES = UNIT_K // 2  # of one row in a unit, codes and LoRA alike
REGISTERS = 65536  # of an SM
WGMMA_REGISTERS = 30  # that a thread wants at launch beside the sums of one wgmma (ptxas 13)
SUM_BYTES = 16  # what a lane holds of one octet of columns: two rows x two columns in fp32


class OperandRing:
    """Boxes and slots of ``extent`` rows of one packed operand, of its scale factors and of its side of LoRA."""

    def __init__(self, lay: Any, extent: int):
        box = LayoutsSm90a.k_major_box
        self.bytes = extent * ROW_BYTES
        self.box = box(cutlass.Uint8, "K_SW64", (extent, ROW_BYTES))
        self.codes = self._staged(self.box, self.bytes, lay.stages)
        self.lora_box = box(lay.lora_dtype, "K_SW64", (extent, LORA_UNIT_K))
        self.lora = self._staged(self.lora_box, extent * LORA_UNIT_K, lay.stages)
        self.row_blocks = sf_row_blocks(extent)
        shape = (self.row_blocks, lay.sf_k_blocks, SF_BLOCK_WORDS, lay.stages)
        self.scales = cute.make_ordered_layout(shape, order=(2, 1, 0, 3))
        self.scale_bytes = self.row_blocks * lay.sf_k_blocks * SF_BLOCK_BYTES
        self.extent = extent

    @staticmethod
    def _staged(box: Any, elements: int, stages: int) -> Any:
        """The outer layout of ``stages`` boxes."""
        return cute.make_layout((*box.outer.shape, stages), stride=(*box.outer.stride, elements))


class ColumnPart:
    """Columns ``first`` .. ``first + extent`` - 1 of a tile: those of one wgmma."""

    def __init__(self, lay: Any, first: int, extent: int):
        self.first, self.extent = first, extent
        self.mma, self.lora_mma = (
            sm90_utils.make_trivial_tiled_mma(
                dtype,
                dtype,
                OperandMajorMode.K,
                OperandMajorMode.K,
                Float32,
                (1, 1, 1),
                (MMA_ROWS, extent),
                warpgroup.OperandSource.RMEM,
            )
            for dtype in (DQ_DTYPE, lay.lora_dtype)
        )
        box = LayoutsSm90a.k_major_box(DQ_DTYPE, "K_SW128", (extent, DQ_K))
        halves = lay.slot_halves * lay.dq_stages
        self.dq = cute.make_layout(
            (*box.outer.shape, halves), stride=(*box.outer.stride, lay.columns * DQ_K)
        )  # its part of every half of the dq ring


class LayoutsSmallMWgmma:
    """Counts, sizes, boxes and tiled MMAs of a resolved config with dq slots.

    Constructing one needs an MLIR context.
    """

    def __init__(self, config: Any, problem_class: Any):
        self.rows, self.columns, self.k = config.tile_mnk
        self.splits, self.ctas_per_sm = config.split_k, config.ctas_per_sm
        self.swap_ab = config.swap_ab  # whether weights are the rows
        self.groups = config.consumer_warpgroups
        self.consumer_warps = WARPS_PER_GROUP * self.groups
        self.dequant_groups = config.num_dequant_warpgroups
        self.dequant_warps = WARPS_PER_GROUP * self.dequant_groups
        self.threads = LANES * (WARPS_PER_GROUP + self.dequant_warps + self.consumer_warps)
        self.stages, self.dq_stages = config.num_ab_stage, config.num_dq_stage
        self.slot_halves = config.dq_slot_halves
        self.teams = (
            self.dequant_groups if self.slot_halves == 1 else 1
        )  # of warps that fill a slot of weights
        # Consumers that dequantize a unit of act each, as they have nothing to multiply before it is there.
        self.helpers = min(self.groups, self.stages, self.dq_stages) if self.swap_ab else 0
        self.r = problem_class.r
        self.lora_k = LORA_UNIT_K
        self.num_lora_slices = -(-self.r // LORA_UNIT_K)
        self.lora_dtype = HALF_DTYPES[problem_class.lora_dtype]
        self.out_bf16 = problem_class.out_dtype == "bf16"
        self.activation = problem_class.activation
        self.octets = self.columns // 8
        self.owned = -(-self.octets // self.splits)  # octets of columns that one CTA of a cluster finishes
        self.sf_k_blocks = UNIT_K // SF_BLOCK_K
        self._make_mma()
        self._make_rings()
        self.received_octet_bytes = self.consumer_warps * LANES * SUM_BYTES  # of one octet from one CTA
        received = (self.splits - 1) * self.owned * self.received_octet_bytes
        self.more_bytes = max(0, received - LEAST_WGMMA_STAGES * self.weight_ring.bytes)

    @property
    def weight_ring(self) -> OperandRing:
        return self.row_ring if self.swap_ab else self.column_ring

    def _make_mma(self) -> None:
        """A tiled MMA for each part of the columns: ptxas compiles a wgmma only where the registers that a thread has
        at launch hold its sums and ``WGMMA_REGISTERS`` more (C7602), whatever ``setmaxnreg`` gives later.
        """
        launch = REGISTERS // (self.threads * self.ctas_per_sm) // 8 * 8
        octets, most = self.columns // 8, (launch - WGMMA_REGISTERS) // 4
        sizes = [octets % most] * (octets % most > 0) + [most] * (octets // most)
        self.parts = [ColumnPart(self, 8 * sum(sizes[:part]), 8 * size) for part, size in enumerate(sizes)]

    def _make_rings(self) -> None:
        self.row_ring = OperandRing(self, self.rows)
        self.column_ring = OperandRing(self, self.columns)
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, DQ_DTYPE)
        self.dq = cute.tile_to_shape(
            atom, (self.columns, DQ_K, self.slot_halves * self.dq_stages), order=(0, 1, 2)
        )
        self.half_bytes = self.columns * DQ_K * 2

    def footprint(self) -> dict[str, Any]:
        """Fields of ``budget.Footprint``."""
        return {"smem": smem_rows(self.allocations())}

    def barriers(self) -> list[tuple[str, int, str, int]]:
        """mbarrier arrays: name, count, ring, arrivals per phase."""
        counts = [
            ("rows_full", self.stages, "ab", 1),
            ("rows_empty", self.stages, "ab", self.consumer_warps),
            ("columns_full", self.stages, "ab", 1),
            ("columns_empty", self.stages, "ab", self.dequant_warps),
            ("dq_full", self.dq_stages, "dq", self.dequant_warps),
            ("dq_empty", self.dq_stages, "dq", self.consumer_warps),
        ]
        if self.splits > 1:
            readers = self.consumer_warps if self.swap_ab else self.dequant_warps
            counts += [("sums_full", 1, "one", 1), ("rings_free", 1, "one", self.splits * readers)]
        return counts

    def allocations(self) -> list[Allocation]:
        """Shared memory in the order in which the kernel lays it out."""

        def slots(ring: OperandRing) -> Any:
            return cute.make_layout((ring.bytes, self.stages))

        regions = [
            Allocation("dequantized", DQ_DTYPE, self.dq, "dq", SWIZZLE_ALIGN),
            Allocation("rows", cutlass.Uint8, slots(self.row_ring), "ab", SWIZZLE_ALIGN),
            Allocation("columns", cutlass.Uint8, slots(self.column_ring), "ab", SWIZZLE_ALIGN),
        ]
        if self.swap_ab:
            regions[1:] = reversed(regions[1:])  # weights last: sums may go on behind them
        if self.more_bytes:
            more = cute.make_layout(self.more_bytes)
            regions.append(Allocation("sums beyond the weights", cutlass.Uint8, more, "one", TMA_ALIGN))
        for name, ring in (("row scales", self.row_ring), ("column scales", self.column_ring)):
            regions.append(Allocation(name, cutlass.Int32, ring.scales, "ab", TMA_ALIGN))
        for name, count, ring, _ in self.barriers():
            regions.append(Allocation(name, cutlass.Int64, cute.make_layout(count), ring, MBARRIER_BYTES))
        return regions
