"""Counts of a config, and the shared memory of the kernel: what it allocates and what the budget reads back.

When nobody will read the rings any more they hold the CTA's sums, fp32 ``[tile_m, R + 4]``: four more a row, so that a
warp that writes columns of 8 rows meets no bank twice. Bytes behind them where the rings are too small.
"""

from __future__ import annotations

from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.lora_mma.layouts import (
    BARRIER_BYTES,
    HALF_BYTES,
    RING_ALIGN,
    Region,
)
from kernel_space.operators.nvfp4_quantize.lora_tma.config import GROUP_WARPS, LoraTmaConfig
from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K

MMA_ROWS = 64  # rows of one wgmma: columns of lora_down
SUM_PADDING = 4
SUM_BYTES = 4
QUANT_ROWS = 8  # rows that a warp quantizes at once, four lanes each


class LoraTmaLayouts:
    """Of a config whose slots are a number; needs no DSL."""

    def __init__(self, config: LoraTmaConfig, problem_class: ProblemClass) -> None:
        self.threads, self.quant_warps = config.threads, config.quant_warps
        self.splits = config.split_k
        self.stages = int(config.num_stage)
        self.tile_m = config.tile_m
        self.r = problem_class.r
        self.has_smooth = problem_class.smooth == "fp32"
        self.is_bf16 = problem_class.x_dtype == "bf16"
        self.row_bytes = CHUNK_K * HALF_BYTES
        self.columns = -(-self.r // MMA_ROWS) * MMA_ROWS  # those beyond R are zeros
        self.x_bytes = self.tile_m * self.row_bytes
        self.lora_bytes = self.r * self.row_bytes
        self.slot_bytes = self.columns * self.row_bytes
        self.inverse_bytes = CHUNK_K * SUM_BYTES
        self.sum_row = self.r + SUM_PADDING  # fp32 from one row of sums to the next
        sums = self.tile_m * self.sum_row * SUM_BYTES
        self.more_bytes = max(0, sums - (self.x_bytes + self.slot_bytes))  # beyond one slot of both rings
        self.groups = self.tile_m // QUANT_ROWS
        self.invert_warps = min(GROUP_WARPS - 1, self.stages)
        self.full_arrivals = 2 if self.has_smooth else 1
        self.empty_arrivals = GROUP_WARPS + self.quant_warps

    def allocations(self) -> list[Region]:
        """Shared memory in the order in which the kernel lays it out: the rings side by side, slots of x first."""
        regions = [
            Region("x", self.stages * self.x_bytes, "x", RING_ALIGN),
            Region("lora_down", self.stages * self.slot_bytes, "x", RING_ALIGN),
        ]
        if self.more_bytes:
            regions.append(Region("sums beyond the rings", self.more_bytes, "one", 16))
        if self.has_smooth:
            regions.append(Region("1 / smooth", self.stages * self.inverse_bytes, "x", 16))
        barriers = self.stages * BARRIER_BYTES
        return regions + [Region(name, barriers, "x", BARRIER_BYTES) for name in ("full", "empty")]

    def footprint(self) -> dict[str, tuple[tuple[str, int, str], ...]]:
        """Fields of ``budget.Footprint``; of a config with one slot."""
        return {"smem": tuple((one.name, one.bytes, one.ring) for one in self.allocations())}
