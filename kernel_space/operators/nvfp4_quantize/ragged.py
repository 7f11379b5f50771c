"""Variants of a problem whose edges fall elsewhere: one object serves all M and K, and a winner must."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Protocol

from kernel_space.core.errors import InputError
from kernel_space.numerics.blocked import SF_BLOCK_K, SF_ROWS
from kernel_space.operators.nvfp4_quantize.problem import K_MULTIPLE, QuantizeProblem


class Tiled(Protocol):
    """A config of any kernel of this operator."""

    @property
    def tile_mk(self) -> tuple[int, int]: ...


def ragged(config: Tiled, problem: QuantizeProblem) -> list[QuantizeProblem]:
    """Problems of the same class, legal for ``config`` or not."""
    return list(dict.fromkeys(_variants(config, problem)))


def _variants(config: Tiled, problem: QuantizeProblem) -> Iterator[QuantizeProblem]:
    tile_m, tile_k = config.tile_mk
    candidates = (
        # the same tiles with both edges cut, of one row the edge along K alone
        (max(problem.m - 3, 1), problem.k - K_MULTIPLE),
        # some rows and half a block of scales more than whole tiles and blocks
        (max(SF_ROWS, tile_m) + 5, tile_k + SF_BLOCK_K + K_MULTIPLE),
        # less than one tile in both directions
        (1, K_MULTIPLE),
    )
    for m, k in candidates:
        try:
            yield dataclasses.replace(problem, m=m, k=k)
        except InputError:  # nothing is left of a problem this small
            continue
