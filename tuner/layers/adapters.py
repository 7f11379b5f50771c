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
import operator
from collections.abc import Iterable, Mapping
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
Prepared = tuple[dict[str, "Known"], dict[PackedAdapter, float]]


class Adapters:
    """Those of one layer, in its columns from ``start`` to ``stop``. ``writes``: how often its memory was written to.

    What is in the columns is known, unless somebody else wrote there (``forget``).
    """

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop, self.writes = start, stop, 0
        self._held: dict[PackedAdapter, int] = {}  # -> its first column
        self._active: dict[PackedAdapter, int] = {}  # -> the column from which on lora_up is not zero
        self._known: dict[str, Known] = {}
        self._foreign = False

    def forget(self) -> int:
        """Somebody else writes to the memory: nothing is known of it from now on. Returns ``writes``."""
        self._held, self._active, self._foreign = {}, {}, True
        return self.writes

    def prepare(self, adapters: Given, wcscale: torch.Tensor, k: int, dtype: torch.dtype) -> Prepared:
        """What ``commit`` writes; nothing is changed here. Raises ``InputError`` for what does not fit."""
        known = {name: self._packed(name, *given[:2], wcscale, k, dtype) for name, given in adapters.items()}
        wanted = {
            known[name].packed: require_strength(name, strength)
            for name, (_, _, strength) in adapters.items()
        }
        self.require_room(wanted)
        return known, wanted

    def require_room(self, wanted: Iterable[PackedAdapter]) -> None:
        """Raises ``InputError`` where these need more columns than there are."""
        room, needed = self.stop - self.start, sum(one.width for one in wanted)
        if needed > room:
            raise InputError(
                f"adapters need {needed} columns, and the layer has {room}: reserve_adapters(max_rank) makes room"
            )

    def commit(self, prepared: Prepared, down: torch.Tensor, up: torch.Tensor) -> None:
        """Let exactly these count, in packed ``down`` and ``up`` of the layer; in place."""
        known, wanted = prepared
        self._known |= known
        self.write(wanted, down, up)

    def _packed(
        self,
        name: str,
        down: torch.Tensor,
        up: torch.Tensor,
        wcscale: torch.Tensor,
        k: int,
        dtype: torch.dtype,
    ) -> Known:
        """The adapter of that name as it was packed before, if nothing about it changed."""
        before, tensors = self._known.get(name), (down, up, wcscale)
        if before is not None and before.is_of(tensors):
            return before
        return Known(tensors, PackedAdapter.of(down, up, wcscale, k, dtype))

    def write(self, wanted: Mapping[PackedAdapter, float], down: torch.Tensor, up: torch.Tensor) -> None:
        """Let exactly these count, with their strengths, in packed ``down`` and ``up``; in place."""
        new = self._place(wanted)
        with torch.no_grad():
            # First, so that no half of an old adapter meets one of a new.
            if self._foreign:
                up[:, self.start : self.stop].zero_()
            for one, at in self._active.items():
                if one in new or one not in wanted:
                    up[:, at : at + one.width].zero_()
            for one in new:
                at = self._held[one]
                down[:, at : at + one.width].copy_(one.down)
            for one, strength in wanted.items():
                at = self._held[one]
                torch.mul(one.up, strength, out=up[:, at : at + one.width])
        self._active, self._foreign = {one: self._held[one] for one in wanted}, False
        self.writes += 1

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


class Known:
    """An adapter as it was given, and packed. Its tensors are kept, so that no others come to lie there."""

    __slots__ = ("_looks", "_tensors", "_versions", "packed")

    def __init__(self, tensors: tuple[torch.Tensor, ...], packed: PackedAdapter) -> None:
        """``tensors``: all that ``packed`` was made from."""
        self.packed, self._tensors = packed, tensors
        # torch counts no writes to tensors of inference mode: they are never the same
        self._versions = [None if one.is_inference() else one._version for one in tensors]
        self._looks = list(map(_looks, tensors))

    def is_of(self, tensors: tuple[torch.Tensor, ...]) -> bool:
        """Whether these are the same memory, not written to since; a view made anew is the same."""
        try:
            same = [one._version for one in tensors] == self._versions
        except RuntimeError:  # of inference mode
            return False
        return same and (
            all(map(operator.is_, tensors, self._tensors)) or list(map(_looks, tensors)) == self._looks
        )


def _looks(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def require_strength(name: str, strength: float) -> float:
    """Raises ``InputError`` unless it is a finite number."""
    if isinstance(strength, bool) or not isinstance(strength, int | float) or not math.isfinite(strength):
        raise InputError(f"the strength of adapter {name!r} must be a finite number, got {strength!r:.40}")
    return float(strength)
