"""Shared memory of the small-M kernel of sm_90a: what it allocates and what the budget reads back.

A warp owns 32 weight rows (16 with wgmma) and walks along K in *units*: 128 elements of K, or 32 columns of R. Every
lane copies the bytes that it alone will read, 16 at a time, into a ring slot of its warp:

| bytes of a slot | what |
|---|---|
| octets x 512 | weights: rows g, g+32, ... of a 128-row block (g = lane / 4), quarter lane % 4 of the unit |
| 512 | their scale factors: one 16-byte piece of a 512-byte block holds rows g, g+32, g+64, g+96 |
| own act tiles x 512 | of 8 rows of act each: row g |
| own act tiles x 128 | their scale factors |

With mma.sync (``num_dq_stage=0``) every act tile is every warp's own. With wgmma the warps that work on the same part
of K deal the tiles out among them and write them dequantized to slots that wgmma reads. In the end a warp writes its
fp32 sums over its own ring slots.
"""

from typing import Any

import cutlass
import cutlass.utils.hopper_helpers as sm90_utils
from cutlass import Float32, cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from kernel_space.kernels.allocations import HALF_DTYPES, MBARRIER_BYTES, Allocation, smem_rows

OCTETS = 4  # of 8 rows, 32 apart, whose scale factors share 16-byte pieces
LANES = 32
PIECE = 16 * LANES  # bytes of one 16-byte copy of all lanes
WORD = 4 * LANES
UNIT_K = 128
LORA_UNIT_K = 32
LEAST_STAGES = 2
DQ_DTYPE = cutlass.Float16
DQ_K = 64  # K elements of one swizzled row of 128 bytes: half a unit
GROUP_ROWS = 64  # of a wgmma
SWIZZLE_ALIGN = 1024


class LayoutsSmallM:
    """Counts, sizes and, for wgmma, tiled MMAs of a resolved config with ``mainloop=mma``.

    Constructing one needs an MLIR context.
    """

    def __init__(self, config: Any, problem_class: Any):
        self.rows, self.columns, _ = config.tile_mnk
        self.uses_wgmma = config.num_dq_stage > 0
        self.octets = 2 if self.uses_wgmma else OCTETS  # of weight rows in a warp
        self.warp_rows = 8 * self.octets
        self.warps = 4 * config.consumer_warpgroups
        self.threads = LANES * self.warps
        self.warps_n = self.rows // self.warp_rows
        self.warps_k = self.warps // self.warps_n
        self.splits = config.split_k
        self.stages, self.dq_stages = config.num_ab_stage, config.num_dq_stage
        self.r = problem_class.r
        self.lora_units = -(-self.r // LORA_UNIT_K)
        self.lora_dtype = HALF_DTYPES[problem_class.lora_dtype]
        self.out_bf16 = problem_class.out_dtype == "bf16"
        self.act_tiles = self.columns // 8
        self.own_tiles = -(-self.act_tiles // self.warps_n) if self.uses_wgmma else self.act_tiles
        self._place_slots()
        self.quads = self.rows // 4  # 16-byte pieces of one output row
        self.warp_quads = self.warp_rows // 4
        self.owned = -(-self.columns * self.quads // self.splits)  # pieces that one CTA of a cluster finishes
        if self.uses_wgmma:
            self._make_mma()

    def _place_slots(self) -> None:
        self.scales_offset = self.octets * PIECE
        self.act_offset = self.scales_offset + PIECE
        self.act_scales_offset = self.act_offset + self.own_tiles * PIECE
        # Sums of one act row; 16 bytes more keep the quads of a warp in other banks. The least ring must hold them.
        self.sum_stride = (self.warp_rows + 4) * 4
        sums = -(-self.columns * self.sum_stride // (LEAST_STAGES * WORD)) * WORD
        self.slot_bytes = max(self.act_scales_offset + self.own_tiles * WORD, sums)

    def _make_mma(self) -> None:
        self.tiled_mma, self.lora_mma = (
            sm90_utils.make_trivial_tiled_mma(
                dtype,
                dtype,
                OperandMajorMode.K,
                OperandMajorMode.K,
                Float32,
                (1, 1, 1),
                (GROUP_ROWS, self.columns),
                warpgroup.OperandSource.RMEM,
            )
            for dtype in (DQ_DTYPE, self.lora_dtype)
        )
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, DQ_DTYPE)
        shape = (self.columns, DQ_K, 2 * self.warps_k * self.dq_stages)
        self.dq = cute.tile_to_shape(atom, shape, order=(0, 1, 2))
        self.dq_bytes = self.columns * DQ_K * 2  # of half a unit

    def footprint(self) -> dict[str, Any]:
        """Fields of ``budget.Footprint``."""
        return {"smem": smem_rows(self.allocations())}

    def allocations(self) -> list[Allocation]:
        """Shared memory in the order in which the kernel lays it out."""
        regions = []
        if self.uses_wgmma:
            regions.append(Allocation("dequantized act", DQ_DTYPE, self.dq, "dq", SWIZZLE_ALIGN))
        ring = cute.make_layout((self.slot_bytes, self.warps, self.stages))
        regions.append(Allocation("operands", cutlass.Uint8, ring, "ab", 128))
        if self.splits > 1:
            shape = cute.make_layout((4, self.owned, self.splits))
            regions.append(Allocation("sums of the cluster", Float32, shape, "one", 16))
        regions.append(Allocation("wcscale", Float32, cute.make_layout(self.rows), "one", 16))
        regions.append(Allocation("bias", Float32, cute.make_layout(self.rows), "one", 16))
        if self.splits > 1:
            regions.append(Allocation("arrived", cutlass.Int64, cute.make_layout(1), "one", MBARRIER_BYTES))
        return regions
