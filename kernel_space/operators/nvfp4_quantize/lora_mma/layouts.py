"""Counts of a config, and the shared memory of the kernel: what it allocates and what the budget reads back.

A warp's sums are *pieces* of 8 rows x 16 columns, four fp32 a lane as ``mma.sync`` leaves them. Where several warps
have sums of the same rows (*parties*: CTAs of a cluster times warps along K), piece u belongs to CTA u mod
``split_k``, whose warps along K take turns with its pieces; it gets them from all parties. When nobody will read
lora_down any more its ring receives them; where its least slots are too small, more bytes follow.
"""

from __future__ import annotations

import dataclasses

from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.lora_mma.config import LANES, LoraMmaConfig
from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K

HALF_BYTES = 2
LEAST_STAGES = 1  # enough where a warp has one chunk
PIECE_BYTES = 16 * LANES
RING_ALIGN = 1024  # of the 128-byte swizzle
SMOOTH_BUFFERS = 2  # one is read while the next is written
BARRIER_BYTES = 8


def columns_of(r: int, split_r: int) -> int:
    """Of R in one CTA. Where they are more than R in all, the last CTA begins earlier and stores only its own."""
    return -(-r // (16 * split_r)) * 16


@dataclasses.dataclass(frozen=True)
class Region:
    """``bytes`` of shared memory at a multiple of ``align``; of ``ring`` ``b`` they grow with its slots."""

    name: str
    bytes: int
    ring: str
    align: int


class LoraMmaLayouts:
    """Of a config whose slots are a number; needs no DSL."""

    def __init__(self, config: LoraMmaConfig, problem_class: ProblemClass) -> None:
        self.warps_m, self.warps_k = config.warps_m, config.warps_k
        self.warps, self.threads = config.warps, config.threads
        self.splits, self.parts_r = config.split_k, config.split_r
        self.stages = int(config.num_b_stage)
        self.tile_m = config.tile_m
        self.rows = config.rows_per_warp
        self.octets = self.rows // 8  # rows of one lane
        self.r = problem_class.r
        self.columns = columns_of(self.r, config.split_r)
        self.even = self.columns * config.split_r == self.r
        self.has_smooth = problem_class.smooth == "fp32"
        self.is_bf16 = problem_class.x_dtype == "bf16"
        self.row_bytes = CHUNK_K * HALF_BYTES
        self.slot_bytes = self.columns * self.row_bytes
        self.chunk_bytes = self.r * self.row_bytes  # of all columns, in global memory
        self.pieces = self.octets * self.columns // 16
        self.parties = self.splits * self.warps_k
        self.owned = -(-self.pieces // self.splits)  # pieces of one CTA, at most
        self.piece_bytes = self.warps_m * PIECE_BYTES  # of one piece of all warps along M, from one party
        sums = self.owned * self.parties * self.piece_bytes if self.parties > 1 else 0
        self.more_bytes = max(0, sums - LEAST_STAGES * self.warps_k * self.slot_bytes)

    def allocations(self) -> list[Region]:
        """Shared memory in the order in which the kernel lays it out. The ring: [slot][warp along K][column]."""
        slots = self.stages * self.warps_k
        regions = [Region("lora_down", slots * self.slot_bytes, "b", RING_ALIGN)]
        if self.more_bytes:
            regions.append(Region("sums beyond the ring", self.more_bytes, "one", 16))
        if self.has_smooth:
            smooth = self.warps * SMOOTH_BUFFERS * CHUNK_K * 4
            regions.append(Region("1 / smooth", smooth, "one", 16))
        regions += [Region(name, slots * BARRIER_BYTES, "b", BARRIER_BYTES) for name in ("full", "empty")]
        return regions

    def footprint(self) -> dict[str, tuple[tuple[str, int, str], ...]]:
        """Fields of ``budget.Footprint``; of a config with one slot."""
        return {"smem": tuple((one.name, one.bytes, one.ring) for one in self.allocations())}
