"""Bytes that a launch brings into shared memory, counted by tiles."""

from __future__ import annotations

import math
from typing import Any

from kernel_space.operators.svdquant_gemm.traffic import HALF_BYTES, NVFP4_BYTES
from kernel_space.operators.svdquant_linear_16bit.staged.config import StagedKnobs


def fill_bytes(config: StagedKnobs, problem: Any) -> float:
    """What goes into the SMEM of all CTAs: each tile, at the edge too, its rows of x and columns of weights over all of
    K and R; lora_down and x where they are multiplied with one another.
    """
    rows, columns, _ = config.tile_mnk
    row_tiles, tiles = math.ceil(problem.m / rows), math.ceil(problem.n / columns)
    of_x = rows * problem.k * HALF_BYTES
    tile = of_x + columns * problem.k * NVFP4_BYTES + (rows + columns) * problem.r * HALF_BYTES
    down = 0
    if problem.r:
        width = config.down_tile(problem.r)
        down = math.ceil(problem.r / width) * (of_x + width * problem.k * HALF_BYTES)
    return row_tiles * (tiles * tile + down)
