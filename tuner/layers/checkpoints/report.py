"""What came out of a checkpoint, layer by layer, in words."""

from __future__ import annotations

import dataclasses

import torch

from tuner.layers.linear import SVDQuantLinear


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerReport:
    """``form``: whose tensors these were. ``notes``: what was done to them: padding, signs, order of rows."""

    name: str
    form: str
    became: str
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "; ".join((f"{self.name or '(top)'}: {self.form} to {self.became}", *self.notes))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadReport:
    """``source``: path, or how many tensors were given. ``notes``: what holds for all of it, such as the layout that
    was assumed. ``left``: tensors of other modules, in ``Loaded.rest``. ``unused``: of a layer, without a use here.
    """

    source: str
    layers: tuple[LayerReport, ...]
    notes: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.source}: {len(self.layers)} layers", *self.notes, *map(str, self.layers)]
        lines += [f"left {name}" for name in self.left]
        lines += [f"without a use {name}" for name in self.unused]
        return "\n".join(lines)


class Loaded(dict[str, torch.nn.Module]):
    """``SVDQuantLinear`` by layer name; AWQ layers are 16-bit ``torch.nn.Linear``.

    ``report``: what was converted, padded and left. ``rest``: tensors that belong to no quantized layer, by full
    name, modules named as the layers are.
    """

    report: LoadReport
    rest: dict[str, torch.Tensor]


def described(layer: torch.nn.Module) -> str:
    """``SVDQuantLinear K=128 N=96 R=16 bfloat16``."""
    if isinstance(layer, SVDQuantLinear):
        dtype = str(layer.dtype).removeprefix("torch.")
        return f"SVDQuantLinear K={layer.in_features} N={layer.out_features} R={layer.rank} {dtype}"
    assert isinstance(layer, torch.nn.Linear)
    dtype = str(layer.weight.dtype).removeprefix("torch.")
    return f"Linear K={layer.in_features} N={layer.out_features} {dtype}"
