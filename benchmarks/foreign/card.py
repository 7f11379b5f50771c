"""A card that is none: torch tensors "on cuda" lie in this process's memory, where the machine finds them.

``Card`` is a mode of torch: while it is entered, what asks for device ``cuda`` gets memory of the CPU that is marked.
Crossing between the two copies, as it does with a card, so that a kernel's output never aliases what it is compared
with. Memory that is allocated without a value is filled with bytes of 0xFF (NaN): what a kernel forgets to write shows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

DEVICE = torch.device("cuda", 0)
ALIGNMENT = 512  # of what torch's allocator gives on a card; on the host it is 64
UNSET = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")


class Card(TorchFunctionMode):
    """``storages``: all memory that was ever on the card, by address; it is never freed, so no address comes twice."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, torch.UntypedStorage] = {}
        self._paused = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if self._paused:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name == "__get__" and args and isinstance(args[0], torch.Tensor) and self.holds(args[0]):
            described = {torch.Tensor.device: DEVICE, torch.Tensor.is_cuda: True}.get(func.__self__)  # type: ignore[attr-defined]
            if described is not None:
                return described
        if name in ("cuda", "cpu", "to") and args and isinstance(args[0], torch.Tensor):
            return self._moved(name, args, kwargs)
        if name == "__dlpack__":
            return func(args[0])
        return self._called(func, name, args, kwargs)

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self.storages

    def memory(self) -> list[torch.Tensor]:
        """The bytes of every tensor on the card."""
        with self.paused():
            return [
                torch.empty(0, dtype=torch.uint8).set_(storage)
                for storage in self.storages.values()
                if storage.nbytes()
            ]

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What the body does with tensors is not a program's doing."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def _called(self, func: Callable[..., Any], name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        inputs = list(_tensors((args, kwargs)))
        before = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        on_card = any(address in self.storages for address in before)
        if kwargs.get("device") is not None:
            on_card = torch.device(kwargs["device"]).type == "cuda"
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        result = func(*args, **kwargs)
        for tensor in _tensors(result):
            if on_card and tensor.untyped_storage().data_ptr() not in before:
                self._keep(tensor)
                if name in UNSET:
                    _fill(tensor.untyped_storage())
        return result

    def _moved(self, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """``cuda``, ``cpu`` and ``to``: a copy where memory is left, else what torch does with the type."""
        tensor, rest = args[0], list(args[1:])
        target = {"cuda": DEVICE, "cpu": torch.device("cpu")}.get(name)
        if name == "to":
            target, rest = _target(rest, kwargs, self)
        crossing = target is not None and (target.type == "cuda") is not self.holds(tensor)
        kwargs = {key: value for key, value in kwargs.items() if key in ("dtype", "copy", "memory_format")}
        if crossing:
            moved = tensor.to(*rest, **{**kwargs, "copy": True}) if name == "to" else tensor.clone()
            if target is not None and target.type == "cuda":
                self._keep(moved)
            return moved
        result = tensor.to(*rest, **kwargs) if name == "to" and (rest or kwargs) else tensor
        if self.holds(tensor):
            self._keep(result)
        return result

    def _keep(self, tensor: torch.Tensor) -> None:
        """The tensor's memory is the card's from now on: aligned as there, which moves a new tensor's."""
        storage = tensor.untyped_storage()
        if not storage.nbytes() or storage.data_ptr() in self.storages:
            return
        if storage.data_ptr() % ALIGNMENT:
            with self.paused(), torch.no_grad():
                _move(tensor, storage)
        storage = tensor.untyped_storage()
        self.storages[storage.data_ptr()] = storage


def _target(rest: list[Any], kwargs: dict[str, Any], card: Card) -> tuple[torch.device | None, list[Any]]:
    """The device that ``Tensor.to`` is asked for, and its other positional arguments."""
    device = kwargs.pop("device", None)
    kwargs.pop("non_blocking", None)
    left = []
    for item in rest:
        if isinstance(item, torch.Tensor):
            device = DEVICE if card.holds(item) else "cpu"
            left.append(item.dtype)
        elif isinstance(item, str | torch.device):
            device = item
        elif not isinstance(item, bool):
            left.append(item)
    return (None if device is None else torch.device(device)), left


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _move(tensor: torch.Tensor, old: torch.UntypedStorage) -> None:
    """``tensor`` on a copy of its memory that begins where ``ALIGNMENT`` asks for it."""
    raw = np.empty(old.nbytes() + ALIGNMENT, np.uint8)
    at = -raw.ctypes.data % ALIGNMENT
    new = torch.from_numpy(raw[at : at + old.nbytes()])
    new.untyped_storage().copy_(old)
    tensor.data = torch.empty(0, dtype=tensor.dtype).set_(
        new.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    )


def _fill(storage: torch.UntypedStorage) -> None:
    torch.empty(0, dtype=torch.uint8).set_(storage).fill_(0xFF)
