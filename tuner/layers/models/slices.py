"""Rows and columns of quantized layers, cut out and joined: nothing is computed, codes and scales stay as they are."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.nvfp4 import block_scales, unblock_scales
from kernel_space.operators.svdquant_gemm.packing import PackedSVDQuant
from kernel_space.operators.svdquant_gemm.problem import K_MULTIPLE, N_MULTIPLE
from tuner.layers.linear import SVDQuantLinear


def packed_of(layer: SVDQuantLinear) -> PackedSVDQuant:
    """The weights of a layer, its branch with ``rank`` columns."""
    return PackedSVDQuant(
        wgt=layer.wgt,
        wscales=layer.wscales,
        lora_up=layer.lora_up[:, : layer.rank].contiguous(),
        wcscale=layer.wcscale,
        bias=layer.bias,
    )


def packed_rows(packed: PackedSVDQuant, start: int, stop: int) -> PackedSVDQuant:
    """Rows ``start`` to ``stop`` of N. Raises ``InputError`` for rows that are not there."""
    _require_range("N", start, stop, packed.n, N_MULTIPLE)
    scales = unblock_scales(packed.wscales, packed.n, packed.k)
    return PackedSVDQuant(
        wgt=packed.wgt[start:stop].contiguous(),
        wscales=block_scales(_cut(scales, start, stop)),
        lora_up=packed.lora_up[start:stop].contiguous(),
        wcscale=packed.wcscale[start:stop].contiguous(),
        bias=packed.bias[start:stop].contiguous(),
    )


def packed_columns(packed: PackedSVDQuant, start: int, stop: int) -> PackedSVDQuant:
    """Columns ``start`` to ``stop`` of K; the branch stays whole, as its inputs are partial sums then."""
    _require_range("K", start, stop, packed.k, K_MULTIPLE)
    scales = unblock_scales(packed.wscales, packed.n, packed.k).view(torch.uint8)
    part = scales[:, start // 16 : stop // 16].contiguous().view(torch.float8_e4m3fn)
    return dataclasses.replace(
        packed, wgt=packed.wgt[:, start // 2 : stop // 2].contiguous(), wscales=block_scales(part)
    )


def _cut(scales: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    return scales.view(torch.uint8)[start:stop].contiguous().view(torch.float8_e4m3fn)


def _require_range(name: str, start: int, stop: int, size: int, multiple: int) -> None:
    if not 0 <= start < stop <= size or start % multiple or (stop - start) % multiple:
        raise InputError(
            f"a part of {name} = {size} must be in it and in multiples of {multiple}, got {start} to {stop}"
        )


def rows(layer: SVDQuantLinear, start: int, stop: int) -> SVDQuantLinear:
    """A layer of some outputs. Raises ``InputError``."""
    if (start, stop) == (0, layer.out_features):
        return layer
    part = packed_rows(packed_of(layer), start, stop)
    return SVDQuantLinear.from_packed(part, layer.lora_down, layer.smooth)


def columns(layer: SVDQuantLinear, start: int, stop: int) -> SVDQuantLinear:
    """A layer of some inputs, with the whole bias. Raises ``InputError``."""
    if (start, stop) == (0, layer.in_features):
        return layer
    part = packed_columns(packed_of(layer), start, stop)
    return SVDQuantLinear.from_packed(part, layer.lora_down[start:stop], layer.smooth[start:stop])


def stacked(layers: Sequence[SVDQuantLinear]) -> SVDQuantLinear:
    """One layer with the outputs of all, one behind the other.

    They must divide x by the same numbers; branches that differ are put side by side, so that ranks add up. Raises
    ``InputError`` where that cannot be.
    """
    first = layers[0]
    for one in layers[1:]:
        if one.in_features != first.in_features or one.dtype != first.dtype:
            raise InputError(f"layers to join must have one K and one dtype, got {first} and {one}")
        if not torch.equal(one.smooth, first.smooth):
            raise InputError("layers to join must have one smooth, these divide x by different numbers")
    parts = [packed_of(one) for one in layers]
    same = all(torch.equal(one.lora_down, first.lora_down) for one in layers[1:])
    ups = [part.lora_up for part in parts]
    scales = [unblock_scales(part.wscales, part.n, part.k).view(torch.uint8) for part in parts]
    joined = PackedSVDQuant(
        wgt=torch.cat([part.wgt for part in parts]),
        wscales=block_scales(torch.cat(scales).view(torch.float8_e4m3fn)),
        lora_up=torch.cat(ups) if same else torch.block_diag(*ups).to(first.dtype),
        wcscale=torch.cat([part.wcscale for part in parts]),
        bias=torch.cat([part.bias for part in parts]),
    )
    down = first.lora_down if same else torch.cat([one.lora_down for one in layers], dim=1)
    return SVDQuantLinear.from_packed(joined, down, first.smooth)


class InputParts(torch.nn.Module):
    """``y = sum of layer_i(x_i)``, where x is cut along its last dimension: one linear that was quantized in parts.

    Each part divides x by its own numbers and has its own scale, so they cannot be one layer.
    """

    def __init__(self, parts: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)
        self.sizes: list[int] = [int(part.in_features) for part in parts]  # type: ignore[arg-type]  # of a linear
        self.in_features = sum(self.sizes)
        self.out_features = int(parts[0].out_features)  # type: ignore[arg-type]  # of a linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., K]`` -> ``[..., N]``."""
        if x.shape[-1] != self.in_features:
            raise InputError(f"x must be [..., {self.in_features}], got {list(x.shape)}")
        pieces = x.split(self.sizes, dim=-1)
        y = self.parts[0](pieces[0])
        for part, piece in zip(self.parts[1:], pieces[1:], strict=True):
            y = y + part(piece)
        return y


def cut_to(layer: torch.nn.Module, n: int, k: int, padding: int = 128) -> torch.nn.Module:
    """``layer`` without the padding beyond ``n`` outputs and ``k`` inputs, less than ``padding`` of each.

    Raises ``InputError`` when it is smaller, or larger by more than padding would be.
    """
    had = (int(layer.out_features), int(layer.in_features))  # type: ignore[arg-type]  # of a linear
    if had == (n, k):
        return layer
    padded = tuple(math.ceil(size / padding) * padding for size in (n, k))
    if not isinstance(layer, SVDQuantLinear) or any(
        have not in (want, room) for have, want, room in zip(had, (n, k), padded, strict=True)
    ):
        raise InputError(f"the layer is [N, K] = {list(had)}, the model's linear is {[n, k]}")
    return columns(rows(layer, 0, n), 0, k)
