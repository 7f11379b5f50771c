"""Shared memory of the small-M kernel of sm_90a: what it allocates and what the budget reads back.

A warp owns 32 weight rows and walks along K in *units*: 128 elements of K, or 32 columns of R. Every lane copies the
bytes that it alone will read, 16 at a time, into a ring slot of its warp:

| bytes of a slot | what |
|---|---|
| 4 x 512 | weights: of rows g, g+32, g+64, g+96 of a 128-row block (g = lane / 4) quarter lane % 4 of the unit |
| 512 | their scale factors: one 16-byte piece of a 512-byte block, which holds exactly these four rows |
| columns / 8 x 512 | act rows 8i + g |
| columns / 8 x 128 | their scale factors |

In the end a warp writes its fp32 sums over its own slots.
"""

from typing import Any

import cutlass
from cutlass import Float32, cute

from kernel_space.kernels.allocations import Allocation

WARP_ROWS = 32  # weight rows of a warp: two blocks of 16 for mma.sync
OCTETS = 4  # of 8 rows, 32 apart, whose scale factors share 16-byte pieces
LANES = 32
PIECE = 16 * LANES  # bytes of one 16-byte copy of all lanes
UNIT_K = 128
LORA_UNIT_K = 32
SCALES_OFFSET = OCTETS * PIECE
ACT_OFFSET = SCALES_OFFSET + PIECE
SUM_STRIDE = (WARP_ROWS + 4) * 4  # bytes of the sums of one act row; 4 more keep the quads of a warp in other banks


class LayoutsSmallM:
    """Counts and sizes of a resolved config with ``mainloop=mma``."""

    def __init__(self, config: Any, problem_class: Any):
        self.rows, self.columns, _ = config.tile_mnk
        self.warps = 4 * config.consumer_warpgroups
        self.threads = LANES * self.warps
        self.warps_n = self.rows // WARP_ROWS
        self.warps_k = self.warps // self.warps_n
        self.splits = config.split_k
        self.stages = config.num_ab_stage
        self.r = problem_class.r
        self.lora_units = -(-self.r // LORA_UNIT_K)
        self.lora_bf16 = problem_class.lora_dtype == "bf16"
        self.out_bf16 = problem_class.out_dtype == "bf16"
        self.act_tiles = self.columns // 8
        # Rows 32 apart share a 16-byte piece of scale factors: a lane copies what of it the tile needs.
        self.act_scale_words = max(1, self.columns // 32)
        self.act_scale_loads = self.act_tiles // self.act_scale_words
        self.act_scales_offset = ACT_OFFSET + self.act_tiles * PIECE
        self.slot_bytes = self.act_scales_offset + self.act_tiles * LANES * 4
        self.sum_bytes = self.columns * SUM_STRIDE
        self.quads = self.rows // 4  # 16-byte pieces of one output row
        self.owned = -(-self.columns * self.quads // self.splits)  # pieces that one CTA of a cluster finishes

    def allocations(self) -> list[Allocation]:
        """Shared memory in the order in which the kernel lays it out."""
        ring = cute.make_layout((self.slot_bytes, self.warps, self.stages))
        regions = [Allocation("operands", cutlass.Uint8, ring, "ab", 128)]
        if self.splits > 1:
            shape = cute.make_layout((4, self.owned, self.splits))
            regions.append(Allocation("sums of the cluster", Float32, shape, "one", 16))
        return [
            *regions,
            Allocation("wcscale", Float32, cute.make_layout(self.rows), "one", 16),
            Allocation("bias", Float32, cute.make_layout(self.rows), "one", 16),
        ]
