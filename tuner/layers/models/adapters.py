"""Adapters of a whole model: each has tensors for some of its layers, and one strength."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from kernel_space.core.errors import InputError
from tuner.layers.linear import SVDQuantLinear
from tuner.layers.models.slices import InputParts

Tensors = tuple[torch.Tensor, torch.Tensor]  # down, up
OfModel = Mapping[str, tuple[Mapping[str, Tensors], float]]
_Given = dict[SVDQuantLinear, dict[str, tuple[torch.Tensor, torch.Tensor, float]]]


def reserve_adapters(model: torch.nn.Module, max_rank: int) -> None:
    """``SVDQuantLinear.reserve_adapters`` of every layer of ``model``. Raises ``InputError``, changing nothing."""
    layers = list(_layers(model))
    if not layers:
        raise InputError("the model has no SVDQuantLinear: quantize it, or attach layers")
    if (most := max(one.rank for one in layers)) > max_rank:
        raise InputError(f"max_rank must be at least the layers' rank {most}, got {max_rank}")
    for layer in layers:
        layer.reserve_adapters(max_rank)


def set_adapters(model: torch.nn.Module, adapters: OfModel) -> None:
    """``{name: ({layer: (down, up)}, strength)}``: exactly these count from now on, as ``SVDQuantLinear.set_adapters``.

    ``layer``: the name of a ``SVDQuantLinear`` of the model, or of a linear that is two layers side by side. Give the
    same tensors every time: those that a layer knows are not packed again, and a switch is a few copies a layer. Raises
    ``InputError``, changing nothing, for layers that are not there and tensors that do not fit.
    """
    given: _Given = {layer: {} for layer in _layers(model)}
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, (tensors, strength) in adapters.items():
        for place, (down, up) in tensors.items():
            for layer, own in _parts(name, place, modules.get(place), down):
                given[layer][name] = (own, up, strength)
    prepared = {}
    for layer, one in given.items():
        try:
            prepared[layer] = layer.prepare_adapters(one)
        except InputError as error:
            place = next(place for place, module in modules.items() if module is layer)
            raise InputError(f"layer {place!r}: {error}") from None
    for layer, ready in prepared.items():
        layer.commit_adapters(ready)


def _layers(model: torch.nn.Module) -> Iterator[SVDQuantLinear]:
    return (one for one in model.modules() if isinstance(one, SVDQuantLinear))


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
