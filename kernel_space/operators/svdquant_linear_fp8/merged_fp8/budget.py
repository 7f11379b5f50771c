"""Workspace of ``merged_fp8``; its SMEM budget and stage solver are those of ``merged``, with its own layouts."""

from __future__ import annotations

from typing import Any

from kernel_space.core.kernel import Room
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.partials import PARTIAL_BYTES, PARTIALS_ALIGN
from kernel_space.operators.svdquant_gemm.tiles import num_cta_tiles
from kernel_space.operators.svdquant_gemm.workspace import zeroed_bytes
from kernel_space.operators.svdquant_linear_16bit.merged.budget import budget, solve_stages
from kernel_space.operators.svdquant_linear_fp8.merged_fp8.config import MergedFp8Config
from kernel_space.operators.svdquant_linear_fp8.problem import Fp8LinearProblem

__all__ = ["budget", "layouts", "room", "solve_stages"]
SCALE_BYTES = 4
TILE_COLUMNS = 256  # at most: scales of a cluster's columns beyond M are read, whatever they are


def room(config: MergedFp8Config, problem: Fp8LinearProblem) -> Room:
    """Flags and fp32 sums where ``stream_k`` deals tiles out; merged weights ``[N, K]``; x in FP8 ``[M, K]``, each from
    a multiple of 256 bytes on; a scale for each row of x.
    """
    sizes: Any = problem  # only sizes are read
    _, sums = config.sums_in_workspace(num_cta_tiles(config, sizes))
    rows, columns, _ = config.tile_mnk
    zeroed = zeroed_bytes(config, sizes)
    matrices = sum(_aligned(extent * problem.k) for extent in (problem.n, problem.m))
    scales = (problem.m + TILE_COLUMNS * config.cluster_shape_mn[1]) * SCALE_BYTES
    return Room(size=zeroed + sums * rows * columns * PARTIAL_BYTES + matrices + scales, zeroed=zeroed)


def _aligned(size: int) -> int:
    return -(-size // PARTIALS_ALIGN) * PARTIALS_ALIGN


def layouts(config: MergedFp8Config, problem_class: ProblemClass) -> Any:
    """What both kernels allocate; imports the DSL, needs an MLIR context."""
    from kernel_space.operators.svdquant_linear_fp8.merged_fp8.layouts import MergedFp8Layouts

    return MergedFp8Layouts(config, problem_class)
