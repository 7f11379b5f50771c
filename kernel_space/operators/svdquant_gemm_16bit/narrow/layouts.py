"""Shared memory of the kernel ``narrow``: what it allocates and what the budget reads back.

A warp owns 32 rows of weights and walks along K in *units*: 128 elements of K, or 32 columns of R. It copies its
weights into a ring of its own:

| bytes of a slot | what |
|---|---|
| 4 x 512 | weights: rows g, g + 32, ... of a 128-row block (g = 0 .. 7), 64 bytes each, in four pieces of 16 |
| 2 x 128 | scale factors of two blocks of 64 K: one 16-byte piece holds rows g, g + 32, g + 64, g + 96 |

Warps that share a part of K share a ring of xs: tiles of 8 rows, of 256 bytes each in 16 pieces. Piece p of a row lies
at ``p ^ row`` of its half, so that eight rows of a piece are in different banks.

In the end a warp writes its fp32 sums over its own slots of weights.
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
UNIT_K = 128
SPANS = 2  # of 64 elements in a unit
SCALE_PIECES = 128  # bytes of scale factors of a span
LORA_UNIT_K = 32
XS_ROW = 2 * UNIT_K  # bytes
XS_TILE = 8 * XS_ROW


class NarrowLayouts:
    """Counts and sizes of a resolved config. Constructing one needs an MLIR context."""

    def __init__(self, config: Any, problem_class: Any):
        self.rows, self.columns, _ = config.tile_mnk
        self.warp_rows = 8 * OCTETS
        self.warps_n, self.warps_k = config.warps_n, config.warps_k
        self.warps = self.warps_n * self.warps_k
        self.threads = LANES * self.warps
        self.splits = config.split_k
        self.stages, self.xs_stages = config.num_ab_stage, config.num_dq_stage
        self.r = problem_class.r
        self.activation = problem_class.activation
        self.lora_units = -(-self.r // LORA_UNIT_K)
        self.half = HALF_DTYPES[problem_class.dtype]
        self.is_bf16 = self.out_bf16 = problem_class.dtype == "bf16"
        self.act_tiles = self.columns // 8
        self.slot_bytes = OCTETS * PIECE + SPANS * SCALE_PIECES
        self.xs_slot_bytes = self.act_tiles * XS_TILE
        self.sum_stride = (self.warp_rows + 4) * 4  # of one row of xs; 16 bytes more: quads in other banks
        self.quads = self.rows // 4  # 16-byte pieces of one output row
        self.warp_quads = self.warp_rows // 4
        self.owned = -(-self.columns * self.quads // self.splits)  # pieces that one CTA of a cluster finishes

    def footprint(self) -> dict[str, Any]:
        """Fields of ``budget.Footprint``."""
        return {"smem": smem_rows(self.allocations())}

    def allocations(self) -> list[Allocation]:
        """Shared memory in the order in which the kernel lays it out."""
        weights = cute.make_layout((self.slot_bytes, self.warps, self.stages))
        xs = cute.make_layout((self.xs_slot_bytes, self.warps_k, self.xs_stages))
        regions = [
            Allocation("weights", cutlass.Uint8, weights, "ab", 128),
            Allocation("xs", cutlass.Uint8, xs, "dq", 128),
        ]
        if self.splits > 1:
            shape = cute.make_layout((4, self.owned, self.splits))
            regions.append(Allocation("sums of the cluster", Float32, shape, "one", 16))
        regions.append(Allocation("wcscale", Float32, cute.make_layout(self.rows), "one", 16))
        regions.append(Allocation("bias", Float32, cute.make_layout(self.rows), "one", 16))
        if self.splits > 1:
            regions.append(Allocation("arrived", cutlass.Int64, cute.make_layout(1), "one", MBARRIER_BYTES))
        return regions
