"""Variants of a problem whose edges fall elsewhere: one object serves all M, N, K, and a winner must."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.rules import Legal, knob_rejection, legalize
from kernel_space.operators.svdquant_gemm.problem import K_MULTIPLE, N_MULTIPLE, GemmProblem

ROWS_OVER, COLUMNS_OVER = 5, N_MULTIPLE  # beyond the last whole tile
ROWS_UNDER, COLUMNS_UNDER, K_UNDER = 3, 8, 32


def ragged_problems(config: KernelConfig, problem: GemmProblem, arch: Arch) -> list[GemmProblem]:
    """Problems of the same class for which ``config`` (resolved) is legal as it is, without ``problem`` itself."""
    found = []
    for variant in dict.fromkeys(_variants(config, problem)):
        legal = legalize(config, variant, arch)
        if variant != problem and isinstance(legal, Legal) and str(legal.config) == str(config):
            found.append(variant)
    return found


def ragged_of_object(config: KernelConfig, problem: GemmProblem, arch: Arch) -> list[GemmProblem]:
    """As ``ragged_problems``, of a config that was compiled: its budget, the same for all sizes, was looked at then.

    Asks no layouts, so it needs no DSL.
    """
    variants = dict.fromkeys(_variants(config, problem))
    return [one for one in variants if one != problem and knob_rejection(config, one, arch) is None]


def _variants(config: KernelConfig, problem: GemmProblem) -> Iterator[GemmProblem]:
    rows, columns = (
        tile * ctas for tile, ctas in zip(config.cta_tile_mnk, config.cluster_shape_mn, strict=False)
    )
    if config.swap_ab:
        rows, columns = columns, rows
    tile_k = config.cta_tile_mnk[2]
    candidates = (
        # the same tiles with every edge cut
        (problem.m - ROWS_UNDER, problem.k - K_UNDER, problem.n - COLUMNS_UNDER),
        # more rows and columns than whole tiles, few tiles: most of the chip has nothing to do
        (rows + ROWS_OVER, tile_k * (config.split_k + 2) + K_MULTIPLE, columns + COLUMNS_OVER),
        # less than one tile in every direction
        (1, max(K_MULTIPLE, tile_k * config.split_k - K_MULTIPLE), N_MULTIPLE),
    )
    for m, k, n in candidates:
        try:
            yield dataclasses.replace(problem, m=m, k=k, n=_multiple(n, N_MULTIPLE))
        except InputError:  # nothing is left of a problem this small
            continue


def _multiple(size: int, multiple: int) -> int:
    return size // multiple * multiple
