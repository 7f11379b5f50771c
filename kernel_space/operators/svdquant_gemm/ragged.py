"""Variants of a problem whose edges fall elsewhere: one object serves all M, N, K, and a winner must."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from kernel_space.core.errors import InputError
from kernel_space.operators.svdquant_gemm.gemm_config import GemmConfig
from kernel_space.operators.svdquant_gemm.problem import K_MULTIPLE, GemmProblem

ROWS_OVER = 5  # beyond the last whole tile
ROWS_UNDER, K_UNDER = 3, 32


def ragged(config: GemmConfig, problem: GemmProblem) -> list[GemmProblem]:
    """Problems of the same class, legal for ``config`` or not."""
    return list(dict.fromkeys(_variants(config, problem)))


def _variants(config: GemmConfig, problem: GemmProblem) -> Iterator[GemmProblem]:
    rows, columns = (
        tile * ctas for tile, ctas in zip(config.cta_tile_mnk, config.cluster_shape_mn, strict=False)
    )
    if config.swap_ab:
        rows, columns = columns, rows
    tile_k, step = config.cta_tile_mnk[2], problem.n_multiple
    candidates = (
        # the same tiles with every edge cut
        (problem.m - ROWS_UNDER, problem.k - K_UNDER, problem.n - step),
        # more rows and columns than whole tiles, few tiles: most of the chip has nothing to do
        (rows + ROWS_OVER, tile_k * (config.split_k + 2) + K_MULTIPLE, columns + step),
        # less than one tile in every direction
        (1, max(K_MULTIPLE, tile_k * config.split_k - K_MULTIPLE), step),
    )
    for m, k, n in candidates:
        try:
            yield dataclasses.replace(problem, m=m, k=k, n=_multiple(n, step))
        except InputError:  # nothing is left of a problem this small
            continue


def _multiple(size: int, multiple: int) -> int:
    return size // multiple * multiple
