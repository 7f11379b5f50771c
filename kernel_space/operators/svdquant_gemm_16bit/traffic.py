"""Bytes that a launch brings into shared memory, counted by tiles."""

from __future__ import annotations

import math

from kernel_space.operators.svdquant_gemm.gemm_config import GemmConfig
from kernel_space.operators.svdquant_gemm.traffic import HALF_BYTES, NVFP4_BYTES
from kernel_space.operators.svdquant_gemm_16bit.problem import HalfGemmProblem


def fill_bytes(config: GemmConfig, problem: HalfGemmProblem) -> float:
    """What goes into the SMEM of all CTAs: each tile, at the edge too, its rows and columns over all of K and R."""
    rows, columns = config.mma_tile_mn  # of weights, of xs
    tiles = math.ceil(problem.n / rows) * math.ceil(problem.m / columns)
    packed = rows * (problem.k * NVFP4_BYTES + problem.r * HALF_BYTES)
    return tiles * (packed + columns * (problem.k + problem.r) * HALF_BYTES)
