"""Shared memory of the small-M kernel of sm_90a with mma.sync: what it allocates and what the budget reads back.

A warp owns 32 weight rows and walks along K in *units*: 128 elements of K, or 32 columns of R. Every
lane copies the bytes that it alone will read, 16 at a time, into a ring slot of its warp:

| bytes of a slot | what |
|---|---|
| 4 x 512 | weights: rows g, g+32, ... of a 128-row block (g = lane / 4), quarter lane % 4 of the unit |
| 512 | their scale factors: one 16-byte piece of a 512-byte block holds rows g, g+32, g+64, g+96 |
| act tiles x 512 | of 8 rows of act each: row g |
| act tiles x 128 | their scale factors |

In the end a warp writes its fp32 sums over its own ring slots.
"""

from typing import Any

import cutlass
from cutlass import Float32, cute

from kernel_space.operators.svdquant_gemm.parts.allocations import (
    HALF_DTYPES,
    MBARRIER_BYTES,
    Allocation,
    smem_rows,
)

OCTETS = 4  # of 8 rows, 32 apart, whose scale factors share 16-byte pieces
LANES = 32
PIECE = 16 * LANES  # bytes of one 16-byte copy of all lanes
WORD = 4 * LANES
UNIT_K = 128
LORA_UNIT_K = 32
LEAST_STAGES = 2


class LayoutsSmallM:
    """Counts and sizes of a resolved config without dq slots.

    Constructing one needs an MLIR context.
    """

    def __init__(self, config: Any, problem_class: Any):
        self.rows, self.columns, _ = config.tile_mnk
        self.warp_rows = 8 * OCTETS
        self.warps = 4 * config.consumer_warpgroups
        self.threads = LANES * self.warps
        self.warps_n = self.rows // self.warp_rows
        self.warps_k = self.warps // self.warps_n
        self.splits = config.split_k
        self.stages = config.num_ab_stage
        self.r = problem_class.r
        self.lora_units = -(-self.r // LORA_UNIT_K)
        self.lora_dtype = HALF_DTYPES[problem_class.lora_dtype]
        self.out_bf16 = problem_class.out_dtype == "bf16"
        self.activation = problem_class.activation
        self.act_tiles = self.columns // 8
        self._place_slots()
        self.quads = self.rows // 4  # 16-byte pieces of one output row
        self.warp_quads = self.warp_rows // 4
        self.owned = -(-self.columns * self.quads // self.splits)  # pieces that one CTA of a cluster finishes

    def _place_slots(self) -> None:
        self.scales_offset = OCTETS * PIECE
        self.act_offset = self.scales_offset + PIECE
        self.act_scales_offset = self.act_offset + self.act_tiles * PIECE
        # Sums of one act row; 16 bytes more keep the quads of a warp in other banks. The least ring must hold them.
        self.sum_stride = (self.warp_rows + 4) * 4
        sums = -(-self.columns * self.sum_stride // (LEAST_STAGES * WORD)) * WORD
        self.slot_bytes = max(self.act_scales_offset + self.act_tiles * WORD, sums)

    def footprint(self) -> dict[str, Any]:
        """Fields of ``budget.Footprint``."""
        return {"smem": smem_rows(self.allocations())}

    def allocations(self) -> list[Allocation]:
        """Shared memory in the order in which the kernel lays it out."""
        ring = cute.make_layout((self.slot_bytes, self.warps, self.stages))
        regions = [Allocation("operands", cutlass.Uint8, ring, "ab", 128)]
        if self.splits > 1:
            shape = cute.make_layout((4, self.owned, self.splits))
            regions.append(Allocation("sums of the cluster", Float32, shape, "one", 16))
        regions.append(Allocation("wcscale", Float32, cute.make_layout(self.rows), "one", 16))
        regions.append(Allocation("bias", Float32, cute.make_layout(self.rows), "one", 16))
        if self.splits > 1:
            regions.append(Allocation("arrived", cutlass.Int64, cute.make_layout(1), "one", MBARRIER_BYTES))
        return regions
