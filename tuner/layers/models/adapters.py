"""Adapters of a whole model: each has tensors for some of its layers, and one strength."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

import torch

from kernel_space.core.errors import InputError
from tuner.layers.adapters import Given, Prepared
from tuner.layers.linear import SVDQuantLinear
from tuner.layers.models.bank import Bank, banks_of
from tuner.layers.models.slices import InputParts
from tuner.layers.models.tree import bare

Tensors = tuple[torch.Tensor, torch.Tensor]  # down, up
OfModel = Mapping[str, tuple[Mapping[str, Tensors], float]]
_Given = dict[SVDQuantLinear, dict[str, tuple[torch.Tensor, torch.Tensor, float]]]
_BANKS: weakref.WeakKeyDictionary[torch.nn.Module, list[Bank]] = weakref.WeakKeyDictionary()
"""Of models that were reserved whole; a copy of a model has none, and its layers are written one by one."""


def reserve_adapters(model: torch.nn.Module, max_rank: int) -> None:
    """``SVDQuantLinear.reserve_adapters`` of every layer of ``model``. Raises ``InputError``, changing nothing."""
    model = bare(model)
    layers = _layers(model)
    if not layers:
        raise InputError("the model has no SVDQuantLinear: quantize it, or attach layers")
    if (most := max(one.rank for one in layers)) > max_rank:
        raise InputError(f"max_rank must be at least the layers' rank {most}, got {max_rank}")
    for layer in layers:
        layer.reserve_adapters(max_rank)
    _BANKS[model] = banks_of(layers)


def set_adapters(model: torch.nn.Module, adapters: OfModel) -> None:
    """``{name: ({layer: (down, up)}, strength)}``: exactly these count from now on, as ``SVDQuantLinear.set_adapters``.

    ``layer``: the name of a ``SVDQuantLinear`` of the model, or of a linear that is two layers side by side. Give the
    same tensors every time: those that a layer knows are not packed again, and a switch is a few copies a layer. Raises
    ``InputError``, changing nothing, for layers that are not there and tensors that do not fit.
    """
    model = bare(model)
    given: _Given = {layer: {} for layer in _layers(model)}
    for name, (tensors, strength) in adapters.items():
        for place, (down, up) in tensors.items():
            for layer, own in _parts(name, place, _module(model, place), down):
                given[layer][name] = (own, up, strength)
    banks = [
        (bank, ready)
        for bank in _BANKS.get(model, ())
        if bank.whole(given) and (ready := bank.prepare(given)) is not None
    ]
    alone = given.keys() - {layer for bank, _ in banks for layer in bank.layers}
    prepared = {layer: _prepared(model, layer, one) for layer, one in given.items() if layer in alone}
    for bank, ready in banks:
        bank.commit(ready)
    for layer, own_ready in prepared.items():
        layer.commit_adapters(own_ready)


def _prepared(model: torch.nn.Module, layer: SVDQuantLinear, given: Given) -> Prepared:
    try:
        return layer.prepare_adapters(given)
    except InputError as error:
        places = model.named_modules(remove_duplicate=False)
        place = next(place for place, module in places if module is layer)
        raise InputError(f"layer {place!r}: {error}") from None


def _layers(model: torch.nn.Module) -> list[SVDQuantLinear]:
    """Each once, in the model's order; faster than ``modules``, as a switch must not take milliseconds of it."""
    found: dict[SVDQuantLinear, None] = {}
    waiting = list(model._modules.values())
    if isinstance(model, SVDQuantLinear):
        found[model] = None
    waiting.reverse()
    while waiting:
        module = waiting.pop()
        if module is None:
            continue
        if isinstance(module, SVDQuantLinear):
            found[module] = None
        elif inner := module._modules:
            waiting.extend(reversed(inner.values()))
    return list(found)


def _module(model: torch.nn.Module, place: str) -> torch.nn.Module | None:
    found: torch.nn.Module | None = model
    for name in place.split(".") if place else ():
        found = None if found is None else found._modules.get(name)
    return found


def _parts(
    name: str, place: str, module: torch.nn.Module | None, down: torch.Tensor
) -> list[tuple[SVDQuantLinear, torch.Tensor]]:
    """(layer, its part of ``down``)."""
    if isinstance(module, SVDQuantLinear):
        return [(module, down)]
    if isinstance(module, InputParts):
        along = 0 if down.shape[0] == module.in_features else down.ndim - 1
        if down.shape[along] == module.in_features:
            pieces = down.split(module.sizes, dim=along)
            return [
                (part, piece)
                for part, piece in zip(module.parts, pieces, strict=True)
                if isinstance(part, SVDQuantLinear)
            ]
        raise InputError(
            f"layer {place!r}: down of an adapter must have {module.in_features} inputs, got {list(down.shape)}"
        )
    raise InputError(f"adapter {name!r} has tensors for {place!r}, which is no SVDQuantLinear of the model")
