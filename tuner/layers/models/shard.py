"""``shard``: the part of a quantized layer that one of several processes computes (tensor parallel).

    column   rows of N:     y_i = x W_i^T + b_i          concatenated along N
    row      columns of K:  y_i = x_i W_i^T (+ b once)   summed by an all-reduce, the branch with it

A row-parallel branch keeps all of lora_up: x_i @ lora_down_i are partial sums, and so is what lora_up makes of them.
"""

from __future__ import annotations

import dataclasses
from typing import overload

import torch

from kernel_space.core.errors import InputError
from kernel_space.operators.svdquant_gemm.packing import PackedSVDQuant
from kernel_space.operators.svdquant_gemm.problem import N_MULTIPLE
from tuner.layers.linear import SVDQuantLinear
from tuner.layers.models.slices import columns, packed_columns, packed_rows, rows

WAYS = ("column", "row")
K_SHARD = 64  # a shard's K is a multiple of it: four blocks of NVFP4, a row of blocked scales


@overload
def shard(packed: SVDQuantLinear, shard_index: int, shard_count: int, parallel: str) -> SVDQuantLinear: ...


@overload
def shard(packed: PackedSVDQuant, shard_index: int, shard_count: int, parallel: str) -> PackedSVDQuant: ...


def shard(
    packed: SVDQuantLinear | PackedSVDQuant, shard_index: int, shard_count: int, parallel: str
) -> SVDQuantLinear | PackedSVDQuant:
    """Shard ``shard_index`` of ``shard_count`` of a layer, or of the packed weights of its GEMM; the whole stays.

    ``parallel``: ``"column"``: the shard has N / shard_count outputs of the whole x, its own part of the bias.
    ``"row"``: K / shard_count inputs, and y are partial sums: add those of all shards (``all_reduce``). The bias is on
    shard 0 alone. The shard of packed weights takes ``lora_act_in`` of its own part of x.

    Raises ``InputError`` unless N is a multiple of 8, or K of 64, for every shard.
    """
    if parallel not in WAYS:
        raise InputError(f"parallel must be one of {', '.join(WAYS)}, got {parallel!r}")
    if shard_count < 1 or not 0 <= shard_index < shard_count:
        raise InputError(
            f"shard_index must be from 0 to shard_count - 1, got {shard_index} of {shard_count} shards"
        )
    by_rows = parallel == "column"
    k, n = _sizes(packed)
    size, multiple, name = (n, N_MULTIPLE, "N") if by_rows else (k, K_SHARD, "K")
    if size % (shard_count * multiple):
        raise InputError(
            f"{name} must be a multiple of {multiple} in each of {shard_count} shards, got {name} = {size}"
        )
    width = size // shard_count
    return _part(packed, shard_index * width, (shard_index + 1) * width, by_rows)


def _sizes(packed: SVDQuantLinear | PackedSVDQuant) -> tuple[int, int]:
    """(K, N)."""
    if isinstance(packed, SVDQuantLinear):
        return packed.in_features, packed.out_features
    return packed.k, packed.n


def _part(
    packed: SVDQuantLinear | PackedSVDQuant, start: int, stop: int, by_rows: bool
) -> SVDQuantLinear | PackedSVDQuant:
    if isinstance(packed, SVDQuantLinear):
        if by_rows:
            return rows(packed, start, stop)
        part = columns(packed, start, stop)
        if start:
            part.bias.zero_()
        return part
    if by_rows:
        return packed_rows(packed, start, stop)
    cut = packed_columns(packed, start, stop)
    return dataclasses.replace(cut, bias=torch.zeros_like(cut.bias)) if start else cut
