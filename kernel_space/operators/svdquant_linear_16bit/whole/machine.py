"""What is known of ``whole`` beside its sources: how its work is dealt out, and how long the machine may run it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from kernel_space.operators.svdquant_gemm.sm90a_parts import machine as others
from kernel_space.operators.svdquant_gemm_16bit.narrow.config import WARP_ROWS, NarrowConfig

__all__ = ["TRAITS", "TURNS"]

UNIT_K = 128
PER_UNIT = 50_000  # warp-instructions, of some 700 that a unit takes
LOOKING = 3_000_000, 100_000  # of warps that look for pairs while others are held up: in all, and for each SM


def most_instructions(config: NarrowConfig, problem: Any, sms: int) -> int:
    """Warp-instructions that no correct run needs."""
    tiles = math.ceil(problem.m / config.tile_mnk[1])
    units = math.ceil(problem.k / UNIT_K) * math.ceil((problem.n + problem.r) / WARP_ROWS) * tiles
    least, per_sm = LOOKING
    return least + per_sm * sms + PER_UNIT * units


TRAITS = dataclasses.replace(others.TRAITS, most_instructions=most_instructions)
TURNS = others.TURNS
