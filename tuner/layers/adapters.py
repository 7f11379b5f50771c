"""Adapters (LoRAs) beside the low-rank branch of a layer, in columns that are there already.

    y = x @ W.T + bias + sum of strength_i (x @ down_i) @ up_i.T

A layer with room for ``max_rank`` columns launches a kernel of that rank whatever is in them; what is free is zero. So
adapters come, go and change their strength by writes into memory that stays where it is: a CUDA graph and a compiled
model see them at the next run. An adapter that was there before keeps its columns of ``lora_down`` as long as nobody
else needs them, and only ``lora_up`` is written.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.tensors import FLOAT_DTYPES
from kernel_space.operators.nvfp4_quantize.packing import pack_lora_down
from tuner.layers.decompose import balance, branch_inputs

WIDTH = 8  # an adapter's columns start at a multiple of it and have as many: the pieces of packed lora_down


@dataclasses.dataclass(frozen=True, eq=False)
class PackedAdapter:
    """One adapter of one layer, on the device of the layer: ready to be written into it.

    ``down`` as ``pack_lora_down`` gives it, ``up`` fp32 ``[N, width]`` divided by the layer's scale; ``width``: of
    its columns, a multiple of ``WIDTH``.
    """

    down: torch.Tensor
    up: torch.Tensor

    @property
    def width(self) -> int:
        return self.up.shape[1]

    @classmethod
    def of(
        cls, down: torch.Tensor, up: torch.Tensor, wcscale: torch.Tensor, k: int, dtype: torch.dtype
    ) -> PackedAdapter:
        """``up`` ``[N, r]``; ``down`` ``[K, r]`` or, as PEFT has it, ``[r, K]``. Raises ``InputError``."""
        n = wcscale.shape[0]
        if up.ndim != 2 or up.shape[0] != n or up.dtype not in FLOAT_DTYPES or not up.shape[1]:
            raise InputError(f"up of an adapter must be float [{n}, r], got {_shown(up)}")
        rank = up.shape[1]
        if down.dtype not in FLOAT_DTYPES or tuple(down.shape) not in ((k, rank), (rank, k)):
            raise InputError(
                f"down of an adapter must be float [{k}, {rank}] or its transpose, got {_shown(down)}"
            )
        if tuple(down.shape) != (k, rank):
            down = down.T
        missing = -rank % WIDTH
        exact = down.to(wcscale.device).double()
        folded = up.to(wcscale.device).double() / wcscale.double().unsqueeze(1)
        shift = balance(folded, branch_inputs(exact, None))  # fp16 needs it, as the layer's scale is small
        down, folded = torch.nn.functional.pad((exact * shift).to(dtype), (0, missing)), folded / shift
        if not (torch.isfinite(folded.to(dtype)).all() and torch.isfinite(down).all()):
            raise InputError(
                f"an adapter must be finite in {str(dtype).removeprefix('torch.')}, up divided by the layer's scale"
            )
        return cls(pack_lora_down(down), torch.nn.functional.pad(folded.float(), (0, missing)))


def _shown(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


Given = Mapping[str, tuple[torch.Tensor, torch.Tensor, float]]  # name -> down, up, strength
Prepared = tuple[dict[str, "_Known"], dict[PackedAdapter, float]]


class Adapters:
    """Those of one layer, in its columns from ``start`` to ``stop``."""

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self._held: dict[PackedAdapter, int] = {}  # -> its first column
        self._active: set[PackedAdapter] = set()
        self._known: dict[str, _Known] = {}

    def prepare(self, adapters: Given, wcscale: torch.Tensor, k: int, dtype: torch.dtype) -> Prepared:
        """What ``commit`` writes; nothing is changed here. Raises ``InputError`` for what does not fit."""
        known = {name: self._packed(name, *given[:2], wcscale, k, dtype) for name, given in adapters.items()}
        wanted = {
            known[name].packed: _strength(name, strength) for name, (_, _, strength) in adapters.items()
        }
        room, needed = self.stop - self.start, sum(one.width for one in wanted)
        if needed > room:
            raise InputError(
                f"adapters need {needed} columns, and the layer has {room}: reserve_adapters(max_rank) makes room"
            )
        return known, wanted

    def commit(self, prepared: Prepared, down: torch.Tensor, up: torch.Tensor) -> None:
        """Let exactly these count, in packed ``down`` and ``up`` of the layer; in place."""
        known, wanted = prepared
        self._known |= known
        with torch.no_grad():
            self._write(wanted, down, up)

    def _packed(
        self,
        name: str,
        down: torch.Tensor,
        up: torch.Tensor,
        wcscale: torch.Tensor,
        k: int,
        dtype: torch.dtype,
    ) -> _Known:
        """The adapter of that name as it was packed before, if nothing about it changed."""
        looks = tuple(map(_looks, (down, up, wcscale)))
        before = self._known.get(name)
        if before is not None and before.looks == looks:
            return before
        packed = PackedAdapter.of(down, up, wcscale, k, dtype)
        return _Known(given=(down, up), looks=looks, packed=packed)

    def _write(self, wanted: Mapping[PackedAdapter, float], down: torch.Tensor, up: torch.Tensor) -> None:
        new = self._place(wanted)
        if new or self._active - wanted.keys():
            # First, so that no half of an old adapter meets one of a new.
            up[:, self.start : self.stop].zero_()
        for one in new:
            at = self._held[one]
            down[:, at : at + one.width].copy_(one.down)
        for one, strength in wanted.items():
            at = self._held[one]
            up[:, at : at + one.width].copy_(one.up * strength)
        self._active = set(wanted)

    def _place(self, wanted: Mapping[PackedAdapter, float]) -> list[PackedAdapter]:
        """Find columns for ``wanted``; returns those whose ``down`` must be written. Others stay if there is room."""
        for kept in (self._held, {one: at for one, at in self._held.items() if one in wanted}, {}):
            new = [one for one in wanted if one not in kept]
            at = max((first + one.width for one, first in kept.items()), default=self.start)
            if at + sum(one.width for one in new) <= self.stop:
                break
        self._held = dict(kept)
        for one in new:
            self._held[one] = at
            at += one.width
        return new


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Known:
    """An adapter as it was given, and packed. ``given`` is kept, so that no other tensor comes to lie there."""

    given: tuple[torch.Tensor, torch.Tensor]
    looks: tuple[Any, ...]
    packed: PackedAdapter


def _looks(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What two tensors agree in that are the same memory, not written to since; a view made anew is the same."""
    version = object() if tensor.is_inference() else tensor._version  # torch counts no writes to those
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device, version


def _strength(name: str, strength: float) -> float:
    if isinstance(strength, bool) or not isinstance(strength, int | float) or not math.isfinite(strength):
        raise InputError(f"the strength of adapter {name!r} must be a finite number, got {strength!r:.40}")
    return float(strength)
