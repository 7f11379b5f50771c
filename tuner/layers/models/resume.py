"""Finished layers in a folder, so that quantizing a model can go on where it was stopped."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from kernel_space.core.errors import InputError
from tuner.files.store import CorruptFile, atomic_write, read_json
from tuner.layers.checkpoints.load import load_svdquant
from tuner.layers.checkpoints.own import VERSION, digest, save_svdquant
from tuner.layers.linear import SVDQuantLinear
from tuner.layers.models.one import How, Quantized


class Finished:
    """Two files a layer, named by everything that it was made from: name, weight, settings and calibration batches.

    A layer that was made from anything else is not found. Of a calibration that is a function only that is known:
    another function needs another folder.
    """

    def __init__(self, folder: Path, how: How, calibration: str, memory: int) -> None:
        self._folder = folder
        settings: dict[str, Any] = {**dataclasses.asdict(how), "dtype": str(how.dtype)}
        self._made_from = json.dumps([VERSION, settings, calibration, memory], sort_keys=True)
        self._keys: dict[str, str] = {}

    def has(self, name: str, linear: torch.nn.Linear) -> bool:
        return self._path(name, linear).exists()

    def get(self, name: str, linear: torch.nn.Linear) -> tuple[SVDQuantLinear, Quantized] | None:
        """The layer on the device of ``linear``, and its part of the report. Raises ``InputError`` for damage."""
        path = self._path(name, linear)
        if not path.exists():
            return None
        layer = load_svdquant(path).get(name)
        try:
            found: Any = read_json(path.with_suffix(".json"))
            result = Quantized(**{**found, "places": tuple(found["places"]), "resumed": True})
        except (CorruptFile, TypeError, KeyError) as error:
            raise InputError(
                f"{path.with_suffix('.json')} is damaged: {error}; remove it and {path}"
            ) from None
        if not isinstance(layer, SVDQuantLinear):
            raise InputError(f"{path} does not hold layer {name!r}: remove it")
        return layer.to(linear.weight.device), result

    def keep(self, name: str, linear: torch.nn.Linear, layer: SVDQuantLinear, result: Quantized) -> None:
        """The layer's file comes last: where it is, both are whole."""
        path = self._path(name, linear)
        atomic_write(path.with_suffix(".json"), json.dumps(dataclasses.asdict(result)) + "\n")
        save_svdquant({name: layer}, path)

    def _path(self, name: str, linear: torch.nn.Linear) -> Path:
        if name not in self._keys:
            tensors = {own: tensor.detach().cpu() for own, tensor in linear.state_dict().items()}
            text = f"{self._made_from} {name} {digest(tensors)}"
            self._keys[name] = hashlib.sha256(text.encode()).hexdigest()[:32]
        return self._folder / f"{self._keys[name]}.safetensors"
