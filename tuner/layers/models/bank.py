"""Branches of many layers in one piece of memory, so that adapters of a whole model are written with a few copies.

A layer has its rows of the common ``lora_up`` and its chunks of the common ``lora_down``, both as contiguous as tensors
of its own. To ``Adapters`` the bank is one long layer: an adapter of the model is packed once, zeros where it has
nothing for a layer. Where layers were moved, loaded anew or given other memory, the bank is whole no longer, and its
layers are written one by one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from kernel_space.core.errors import InputError
from tuner.layers.adapters import Adapters, Given, Known, PackedAdapter, require_strength
from tuner.layers.linear import SVDQuantLinear
from tuner.layers.weight import add_branch, column_norms, places_of, row_norms


def banks_of(layers: Iterable[SVDQuantLinear]) -> list[Bank]:
    """Of layers that have room for adapters and whose branches can lie in one tensor; gives them that memory."""
    groups: dict[tuple[Any, ...], list[SVDQuantLinear]] = {}
    for layer in layers:
        if layer.max_rank > layer.rank:
            kind = (layer.lora_up.device, layer.dtype, layer.rank, layer.max_rank, layer.lora_up.shape[1])
            groups.setdefault(kind, []).append(layer)
    return [Bank(group) for group in groups.values() if len(group) > 1]


class Bank:
    """Layers of one device, dtype, rank and ``max_rank``. Their tensors are replaced by parts of the bank's."""

    def __init__(self, layers: Sequence[SVDQuantLinear]) -> None:
        self.layers = list(layers)
        first = self.layers[0]
        self._down = torch.cat([layer.lora_down_packed for layer in layers])
        self._up = torch.cat([layer.lora_up for layer in layers])
        downs = self._down.split([len(layer.lora_down_packed) for layer in layers])
        ups = self._up.split([len(layer.lora_up) for layer in layers])
        self._parts = list(zip(downs, ups, strict=True))
        self._buffers = [layer._buffers for layer in layers]  # as they are asked for often: 0.1 us, not 1
        self._peaks = BankPeaks(self.layers)
        for layer, (down, up) in zip(layers, self._parts, strict=True):
            layer._buffers.update(lora_down_packed=down, lora_up=up)  # the same numbers: nothing to look at
            layer._peaks.refresh(layer._buffers)
        self._adapters = Adapters(first.rank, first.max_rank)
        self._known: dict[str, _OfModel] = {}
        self._written = [-1] * len(self.layers)

    def whole(self, layers: Collection[SVDQuantLinear]) -> bool:
        """Whether its layers are all among ``layers``, those of the model, and still compute with the bank's memory."""
        return all(map(layers.__contains__, self.layers)) and all(
            own["lora_down_packed"] is down and own["lora_up"] is up and own["wpeak"] is peaks
            for own, (down, up), peaks in zip(self._buffers, self._parts, self._peaks.parts, strict=True)
        )

    def prepare(self, given: Mapping[SVDQuantLinear, Given]) -> dict[str, tuple[_OfModel, float]] | None:
        """What ``commit`` writes; None where layers must be written one by one, or one of them refuses."""
        strengths = {name: one[2] for layer in self.layers for name, one in given[layer].items()}
        try:
            found = {
                name: (self._packed(name, given), require_strength(name, strength))
                for name, strength in strengths.items()
            }
            self._adapters.require_room([one.packed for one, _ in found.values()])
        except InputError:
            return None
        return found

    def commit(self, prepared: Mapping[str, tuple[_OfModel, float]]) -> None:
        """Let exactly these count in every layer; in place."""
        if [layer.adapters.writes for layer in self.layers] != self._written:
            self._adapters.forget()  # somebody wrote into a layer itself
        self._known |= {name: known for name, (known, _) in prepared.items()}
        self._adapters.write(
            {known.packed: strength for known, strength in prepared.values()}, self._down, self._up
        )
        self._written = [layer.adapters.forget() for layer in self.layers]
        self._peaks.refresh(self._down, self._up)

    def _packed(self, name: str, given: Mapping[SVDQuantLinear, Given]) -> _OfModel:
        """The adapter of that name as it was packed before, if nothing about it changed."""
        tensors: list[tuple[Any, ...]] = [
            (part[0], part[1], own["wcscale"]) if (part := given[layer].get(name)) is not None else ()
            for layer, own in zip(self.layers, self._buffers, strict=True)
        ]
        before = self._known.get(name)
        if before is not None and all(map(Known.is_of, before.parts, tensors)):
            return before
        packed = [
            PackedAdapter.of(one[0], one[1], one[2], layer.in_features, layer.dtype) if one else None
            for one, layer in zip(tensors, self.layers, strict=True)
        ]
        whole = self._joined(packed)
        return _OfModel([Known(one, whole) for one in tensors], whole)

    def _joined(self, packed: Sequence[PackedAdapter | None]) -> PackedAdapter:
        """One for all layers, as wide as the widest."""
        width = max(one.width for one in packed if one is not None)
        downs, ups = [], []
        for one, (down, up) in zip(packed, self._parts, strict=True):
            own_down = down.new_zeros((len(down), 0, down.shape[2])) if one is None else one.down
            own_up = up.new_zeros((len(up), 0), dtype=torch.float32) if one is None else one.up
            missing = width - own_up.shape[1]
            downs.append(torch.nn.functional.pad(own_down, (0, 0, 0, missing)))
            ups.append(torch.nn.functional.pad(own_up, (0, missing)))
        return PackedAdapter(torch.cat(downs), torch.cat(ups))


@dataclasses.dataclass(frozen=True, eq=False)
class _OfModel:
    """An adapter as each layer got it (no tensors where it has none), and packed for all."""

    parts: list[Known]
    packed: PackedAdapter


class BankPeaks:
    """``wpeak`` of all layers of a bank in one tensor, whose ``parts`` become the layers' buffers.

    Other adapters cost a few kernels for all of them.
    """

    def __init__(self, layers: Sequence[SVDQuantLinear]) -> None:
        self._layers = list(layers)
        rows = [layer.out_features for layer in layers]
        chunks = [len(layer.lora_down_packed) for layer in layers]
        device = layers[0].wpeak.device
        self._places = places_of(device)
        self._peaks = torch.cat([layer.wpeak for layer in layers])
        self.parts = self._peaks.split(rows)
        for layer, part in zip(layers, self.parts, strict=True):
            layer.wpeak = part
        numbers = torch.arange(len(rows))
        self._layer_of_row = numbers.repeat_interleave(torch.tensor(rows)).to(device)
        # Layers of fewer chunks than others name their last one again, so that one maximum serves all.
        last = torch.tensor(chunks).cumsum(0).unsqueeze(1) - 1
        first = last + 1 - torch.tensor(chunks).unsqueeze(1)
        self._chunks_of_layer = torch.minimum(first + torch.arange(max(chunks)), last).to(device)
        self._scales: list[torch.Tensor] = []
        self._joined = self._peaks

    def refresh(self, down: torch.Tensor, up: torch.Tensor) -> None:
        """By the bank's ``lora_down`` and ``lora_up``; in place, without waiting for the device."""
        with torch.no_grad():
            largest = column_norms(down, up, self._places).amax((1, 2))[self._chunks_of_layer].amax(1)
            add_branch(self._of_scales(), row_norms(up), largest[self._layer_of_row], out=self._peaks)
        for layer in self._layers:
            layer._peaks.remember(layer._buffers)

    def _of_scales(self) -> torch.Tensor:
        """fp32, of all rows: the bounds without a branch, joined again where one changed."""
        scales = [layer._peaks.of_scales(layer._buffers) for layer in self._layers]
        if len(scales) != len(self._scales) or any(
            one is not known for one, known in zip(scales, self._scales, strict=True)
        ):
            self._scales, self._joined = scales, torch.cat(scales)
        return self._joined
