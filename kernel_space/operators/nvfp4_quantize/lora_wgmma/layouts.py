"""Counts of a config, and the shared memory of the kernel: what it allocates and what the budget reads back.

Sums are *pieces* of 16 rows x 8 columns, four fp32 a lane as wgmma leaves them; who owns which is as in ``lora_mma``.
They are received in the rings of lora_down and of x, when nobody will read these any more, and in bytes behind them
where both are too small. So the sizes are not linear in the slots, and the rows of the budget are of whole rings.
"""

from __future__ import annotations

from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.lora_mma.layouts import (
    BARRIER_BYTES,
    RING_ALIGN,
    LoraMmaLayouts,
    Region,
)
from kernel_space.operators.nvfp4_quantize.lora_wgmma.config import GROUP_WARPS, WARP_ROWS, LoraWgmmaConfig
from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K

INVERSES = (
    2 * GROUP_WARPS
)  # chunks of 1 / smooth of a warpgroup: four are read while the next four are written


class LoraWgmmaLayouts(LoraMmaLayouts):
    """Of a config whose slots are a number; needs no DSL."""

    def __init__(self, config: LoraWgmmaConfig, problem_class: ProblemClass) -> None:
        super().__init__(config, problem_class)  # type: ignore[arg-type]  # has what is read
        self.x_stages = config.num_x_stage
        self.x_warp_bytes = WARP_ROWS * self.row_bytes  # of one warp and chunk
        self.x_slot_bytes = self.warps * self.x_warp_bytes
        self.rings_bytes = self.stages * self.warps_k * self.slot_bytes + self.x_stages * self.x_slot_bytes
        sums = self.owned * self.parties * self.piece_bytes if self.parties > 1 else 0
        self.more_bytes = max(0, sums - self.rings_bytes)

    def allocations(self) -> list[Region]:
        """Shared memory in the order in which the kernel lays it out. The ring of lora_down: [slot][warpgroup along K]
        [column]; that of x: [slot][warp][row].
        """
        slots = self.stages * self.warps_k
        regions = [
            Region("lora_down", slots * self.slot_bytes, "one", RING_ALIGN),
            Region("x", self.x_stages * self.x_slot_bytes, "one", RING_ALIGN),
        ]
        if self.more_bytes:
            regions.append(Region("sums beyond the rings", self.more_bytes, "one", 16))
        if self.has_smooth:
            smooth = self.warps // GROUP_WARPS * INVERSES * CHUNK_K * 4
            regions.append(Region("1 / smooth", smooth, "one", 16))
        regions += [Region(name, slots * BARRIER_BYTES, "one", BARRIER_BYTES) for name in ("full", "empty")]
        return regions
