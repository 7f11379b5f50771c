"""A small problem in which CTAs of the kernels for sm_90a take several turns: rings wrap in both parities, and what a
role carries from tile to tile, or from step to step, is used again.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from kernel_space.operators.svdquant_gemm.problem import K_MULTIPLE
from kernel_space.operators.svdquant_gemm.tiles import cluster_extents

TURNS = 3  # of a CTA: an odd number of tiles
PINGPONG_TURNS = 5  # two consumer warpgroups take them by turns: three and two
SHARED = 2  # clusters that share the splits of a tile
MOST_STEPS = 60  # K tiles of all warps of one output tile: about what a run of two seconds takes


def turns(config: Any, problem: Any) -> tuple[Any, int]:
    """(problem, SMs of the chip). Of a kernel with one wave of CTAs, whose tiles need no order, only K is long."""
    if not hasattr(config, "raster_order"):
        return _long_k(config, problem)
    clusters = SHARED if config.split_k > 1 else 1
    sms = clusters * config.cluster_size
    places = config.max_active_clusters(sms)
    least = PINGPONG_TURNS if getattr(config, "pingpong", False) else TURNS
    tiles = max(2, -(-least * places // config.split_k))
    steps = _steps(config, -(-tiles * config.split_k // places))
    rows, columns = cluster_extents(config)
    k = steps * config.split_k * config.cta_tile_mnk[2] - K_MULTIPLE
    return _sized(config, problem, rows // 2 + 5, (tiles - 1) * columns + columns // 2 + 5, k), sms


def _long_k(config: Any, problem: Any) -> tuple[Any, int]:
    """Every warp with a part of K of its own goes round its ring, twice where that is cheap. One tile, whole but for a
    row of x: what lanes copy by rows matters for every copy that refills a slot.
    """
    parts, stages = config.partial_sums, int(config.num_ab_stage)
    each = 2 * stages + 1 if (2 * stages + 1) * parts <= MOST_STEPS else stages + 2
    rows, columns = cluster_extents(config)
    k = each * parts * config.cta_tile_mnk[2] - K_MULTIPLE
    return _sized(config, problem, rows - 1, columns - 1, k), config.cluster_size * config.split_k


def _steps(config: Any, works: int) -> int:
    """K tiles of one piece of work: no multiple of a ring, so that tiles begin at other slots."""
    stages, halves = int(config.num_ab_stage), int(config.num_dq_stage)
    steps = max(2, -(-(2 * stages + 1) // works))
    while (stages > 1 and steps % stages == 0) or (halves > 1 and steps % halves == 0) or (
        halves > 2 and 2 * steps % halves == 0
    ):  # fmt: skip
        steps += 1
    return steps


def _sized(config: Any, problem: Any, rows: int, columns: int, k: int) -> Any:
    m, n = (columns, rows) if config.swap_ab else (rows, columns)
    step = problem.n_multiple
    return dataclasses.replace(problem, m=m, n=-(-n // step) * step, k=k)
