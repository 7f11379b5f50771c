"""Shared memory of the small-M kernel of sm_90a with wgmma: what it allocates and what the budget reads back.

Work comes in *units*: 128 elements of K, or 32 columns of R. Two rings hold them:

| region | slots | a slot |
|---|---|---|
| weights, packed act | num_ab_stage | TMA boxes of one unit: swizzled rows of 64 bytes, of codes or for LoRA |
| weight scales, act scales | num_ab_stage | whole blocks of 128 rows |
| act | num_dq_stage | one unit of act as fp16, or of lora_act_in: two swizzled halves |

When the last weights of a CTA are in registers, the ring of weights receives the sums of the cluster's other CTAs.
Where its least slots are too small for them, more bytes follow it.
"""

from typing import Any

import cutlass
import cutlass.utils.hopper_helpers as sm90_utils
from cutlass import Float32, cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from kernel_space.config_sm90a import LEAST_WGMMA_STAGES, MMA_ROWS
from kernel_space.kernels.allocations import HALF_DTYPES, MBARRIER_BYTES, Allocation, smem_rows
from kernel_space.kernels.layouts_sm90a import (
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
from kernel_space.kernels.layouts_small_m_sm90a import LANES, LORA_UNIT_K, UNIT_K

HALVES = UNIT_K // DQ_K
ROW_BYTES = UNIT_K // 2  # of one row of weights in a unit, codes and lora_up alike
SUM_BYTES = 16  # what a lane holds of one octet of act rows: two weight rows x two act rows in fp32


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


class LayoutsSmallMWgmma:
    """Counts, sizes, boxes and tiled MMAs of a resolved config with ``mainloop=mma`` and dq slots.

    Constructing one needs an MLIR context.
    """

    def __init__(self, config: Any, problem_class: Any):
        self.rows, self.columns, self.k = config.tile_mnk
        self.groups = config.consumer_warpgroups
        self.consumer_warps = WARPS_PER_GROUP * self.groups
        self.threads = LANES * WARPS_PER_GROUP * (self.groups + 2)
        self.splits = config.split_k
        self.stages, self.dq_stages = config.num_ab_stage, config.num_dq_stage
        self.helpers = min(self.groups, self.stages, self.dq_stages)  # consumers with a unit of act each
        self.r = problem_class.r
        self.lora_k = LORA_UNIT_K
        self.num_lora_slices = -(-self.r // LORA_UNIT_K)
        self.lora_dtype = HALF_DTYPES[problem_class.lora_dtype]
        self.out_bf16 = problem_class.out_dtype == "bf16"
        self.octets = self.columns // 8
        self.owned = -(-self.octets // self.splits)  # octets of act rows that one CTA of a cluster finishes
        self.sf_k_blocks = UNIT_K // SF_BLOCK_K
        self._make_mma()
        self._make_rings()
        self.received_octet_bytes = self.consumer_warps * LANES * SUM_BYTES  # of one octet from one CTA
        received = (self.splits - 1) * self.owned * self.received_octet_bytes
        self.more_bytes = max(0, received - LEAST_WGMMA_STAGES * self.weight_bytes)

    def _make_mma(self) -> None:
        self.tiled_mma, self.lora_mma = (
            sm90_utils.make_trivial_tiled_mma(
                dtype,
                dtype,
                OperandMajorMode.K,
                OperandMajorMode.K,
                Float32,
                (1, 1, 1),
                (MMA_ROWS, self.columns),
                warpgroup.OperandSource.RMEM,
            )
            for dtype in (DQ_DTYPE, self.lora_dtype)
        )

    def _make_rings(self) -> None:
        self.weights = OperandRing(self, self.rows)
        self.packed_act = OperandRing(self, self.columns)
        self.weight_bytes, self.scale_bytes = self.weights.bytes, self.weights.scale_bytes
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, DQ_DTYPE)
        self.dq = cute.tile_to_shape(atom, (self.columns, DQ_K, HALVES * self.dq_stages), order=(0, 1, 2))
        self.half_bytes = self.columns * DQ_K * 2

    def footprint(self) -> dict[str, Any]:
        """Fields of ``budget.Footprint``."""
        return {"smem": smem_rows(self.allocations())}

    def barriers(self) -> list[tuple[str, int, str, int]]:
        """mbarrier arrays: name, count, ring, arrivals per phase."""
        counts = [
            ("weights_full", self.stages, "ab", 1),
            ("weights_empty", self.stages, "ab", self.consumer_warps),
            ("packed_full", self.stages, "ab", 1),
            ("packed_empty", self.stages, "ab", WARPS_PER_GROUP),
            ("act_full", self.dq_stages, "dq", WARPS_PER_GROUP),
            ("act_empty", self.dq_stages, "dq", self.consumer_warps),
        ]
        if self.splits > 1:
            counts += [
                ("sums_full", 1, "one", 1),
                ("rings_free", 1, "one", self.splits * self.consumer_warps),
            ]
        return counts

    def allocations(self) -> list[Allocation]:
        """Shared memory in the order in which the kernel lays it out."""

        def slots(ring: OperandRing) -> Any:
            return cute.make_layout((ring.bytes, self.stages))

        regions = [
            Allocation("act", DQ_DTYPE, self.dq, "dq", SWIZZLE_ALIGN),
            Allocation("packed act", cutlass.Uint8, slots(self.packed_act), "ab", SWIZZLE_ALIGN),
            Allocation("weights", cutlass.Uint8, slots(self.weights), "ab", SWIZZLE_ALIGN),
        ]
        if self.more_bytes:
            more = cute.make_layout(self.more_bytes)
            regions.append(Allocation("sums beyond the weights", cutlass.Uint8, more, "one", TMA_ALIGN))
        for name, ring in (("weight scales", self.weights), ("act scales", self.packed_act)):
            regions.append(Allocation(name, cutlass.Int32, ring.scales, "ab", TMA_ALIGN))
        for name, count, ring, _ in self.barriers():
            regions.append(Allocation(name, cutlass.Int64, cute.make_layout(count), ring, MBARRIER_BYTES))
        return regions
