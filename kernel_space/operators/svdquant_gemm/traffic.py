"""Bytes that a launch brings into shared memory, counted by tiles."""

from __future__ import annotations

import math

from kernel_space.operators.svdquant_gemm.gemm_config import GemmConfig
from kernel_space.operators.svdquant_gemm.problem import GemmProblem

NVFP4_BYTES = 9 / 16  # four bits of an element and its share of one E4M3 scale per 16
HALF_BYTES = 2


def fill_bytes(config: GemmConfig, problem: GemmProblem) -> float:
    """What goes into the SMEM of all CTAs: each tile its rows and columns over all of K and R, tiles at the edge whole.

    Of two CTAs that issue one MMA together the tile is that of both.
    """
    tile_m, tile_n = config.mma_tile_mn
    rows, columns = (problem.n, problem.m) if config.swap_ab else (problem.m, problem.n)
    tiles = math.ceil(rows / tile_m) * math.ceil(columns / tile_n)
    return tiles * (tile_m + tile_n) * (problem.k * NVFP4_BYTES + problem.r * HALF_BYTES)
