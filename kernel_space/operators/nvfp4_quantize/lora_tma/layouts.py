"""Counts of a config, and the shared memory of the kernel: what it allocates and what the budget reads back.

Sums that other CTAs send lie beside the rings, so that they may come while rows are still quantized. A *vector* is four
sums of each thread of the multiplying warps: of one octet of rows and one wgmma of columns, two rows of x and two
columns of lora_down.
"""

from __future__ import annotations

from typing import Any

from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.lora_mma.layouts import (
    BARRIER_BYTES,
    HALF_BYTES,
    RING_ALIGN,
    Region,
)
from kernel_space.operators.nvfp4_quantize.lora_tma.config import GROUP_WARPS, LANES, LoraTmaConfig
from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K

MMA_ROWS = 64  # rows of one wgmma: columns of lora_down
SUM_BYTES = 4
QUANT_ROWS = 8  # rows that a warp quantizes at once, four lanes each
INVERT_WARPS = GROUP_WARPS - 1  # of the loading ones, at most
VECTOR_BYTES = 4 * SUM_BYTES  # of one thread


class RingLayouts:
    """Of a config whose slots are a number; needs no DSL. ``turns``: of quantizing warps, as in ``LoraTmaConfig``."""

    def __init__(self, config: Any, problem_class: ProblemClass, turns: int) -> None:
        self.threads, self.quant_warps, self.turns = config.threads, config.quant_warps, turns
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
        self.groups = self.tile_m // QUANT_ROWS
        self.prefetch_dist = 0
        self.invert_warps = min(INVERT_WARPS, self.stages)
        self.full_arrivals = 2 if self.has_smooth else 1
        self.empty_arrivals = GROUP_WARPS + config.quant_warps // turns

    def allocations(self) -> list[Region]:
        """Shared memory in the order in which the kernel lays it out: the rings side by side, slots of x first."""
        regions = [
            Region("x", self.stages * self.x_bytes, "x", RING_ALIGN),
            Region("lora_down", self.stages * self.slot_bytes, "x", RING_ALIGN),
        ]
        if self.has_smooth:
            regions.append(Region("1 / smooth", self.stages * self.inverse_bytes, "x", 16))
        barriers = self.stages * BARRIER_BYTES
        return regions + [Region(name, barriers, "x", BARRIER_BYTES) for name in ("full", "empty")]

    def footprint(self) -> dict[str, tuple[tuple[str, int, str], ...]]:
        """Fields of ``budget.Footprint``; of a config with one slot."""
        return {"smem": tuple((one.name, one.bytes, one.ring) for one in self.allocations())}


class LoraTmaLayouts(RingLayouts):
    """Vector v of warp w of the multiplying ones belongs to CTA ``(v + owner_step * w) % splits`` of its cluster: so
    each has as many, of few rows too.
    """

    def __init__(self, config: LoraTmaConfig, problem_class: ProblemClass) -> None:
        super().__init__(config, problem_class, config.turns)
        self.prefetch_dist = config.prefetch_dist
        self.warps_m = config.quant_warps // config.turns  # quantizing ones that share the rows of a chunk
        if self.turns > 1:
            # Slots are not given back in order. So each is always the same warp's, which knows of its turn before.
            self.invert_warps = max(n for n in range(1, INVERT_WARPS + 1) if self.stages % n == 0)
        self.octets = -(-self.groups // self.warps_m)  # of rows of a chunk that a warp has, at most
        self.blocks = self.columns // MMA_ROWS
        self.vectors = self.groups * self.blocks
        self.owned = -(-self.vectors // self.splits)  # that a CTA adds up, at most
        self.owner_step = -(-self.splits // GROUP_WARPS)
        self.vector_bytes = LANES * GROUP_WARPS * VECTOR_BYTES

    def allocations(self) -> list[Region]:
        """Shared memory in the order in which the kernel lays it out."""
        if self.splits == 1:
            return super().allocations()
        sums = (self.splits - 1) * self.owned * self.vector_bytes
        return [
            *super().allocations(),
            Region("sums of the cluster", sums, "one", VECTOR_BYTES),
            Region("sums full", GROUP_WARPS * BARRIER_BYTES, "one", BARRIER_BYTES),
        ]
