"""What linears of a model see while it runs: the largest size of each channel, and a fair sample of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from kernel_space.core.errors import InputError

SEED = 20
Calibration = Callable[[torch.nn.Module], Any] | Iterable[Any]


class Seen:
    """Inputs of one linear. ``largest`` fp32 ``[K]``, of all rows; ``rows`` ``[up to most, K]``, on the CPU.

    Every row that comes by has the same chance to be kept, from a fixed seed: the same calls keep the same rows.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.largest: torch.Tensor | None = None
        self.rows: torch.Tensor | None = None
        self._keys = torch.empty(0)
        self._draw = torch.Generator().manual_seed(SEED)

    def add(self, x: torch.Tensor) -> None:
        x = x.detach().reshape(-1, x.shape[-1])
        if not x.numel():
            return
        largest = x.abs().amax(dim=0).float().cpu()
        self.largest = largest if self.largest is None else torch.maximum(self.largest, largest)
        keys = torch.cat([self._keys, torch.rand(x.shape[0], generator=self._draw)])
        kept = keys.argsort(stable=True)[: self.most].sort().values
        old = len(self._keys)
        new_rows = x[(kept[kept >= old] - old).to(x.device)].cpu()
        if self.rows is None:
            self.rows = new_rows
        else:
            self.rows = torch.cat([self.rows[kept[kept < old]], new_rows])
        self._keys = keys[kept]


def watch(
    model: torch.nn.Module, linears: Sequence[torch.nn.Module], calibration: Calibration, most: int
) -> dict[torch.nn.Module, Seen]:
    """Run the model on ``calibration`` and keep what ``linears`` see; one that does not run has no entry.

    The model runs as it is, without gradients. What it raises is raised.
    """
    found: dict[torch.nn.Module, Seen] = {}

    def hook(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = args[0] if args else next(iter(kwargs.values()))
        found.setdefault(module, Seen(most)).add(x)

    handles = [linear.register_forward_pre_hook(hook, with_kwargs=True) for linear in linears]
    try:
        with torch.no_grad():
            _run(model, calibration)
    finally:
        for handle in handles:
            handle.remove()
    return {linear: seen for linear, seen in found.items() if seen.rows is not None}


def _run(model: torch.nn.Module, calibration: Calibration) -> None:
    if callable(calibration):
        calibration(model)
        return
    for batch in calibration:
        if isinstance(batch, Mapping):
            model(**batch)
        elif isinstance(batch, tuple | list):
            model(*batch)
        else:
            model(batch)


def repeatable(calibration: Calibration | None) -> Calibration | None:
    """``calibration`` as something that can be run several times. Raises ``InputError`` for what holds no batch."""
    if calibration is None or callable(calibration):
        return calibration
    if isinstance(calibration, torch.Tensor | Mapping) or not isinstance(calibration, Iterable):
        kind = type(calibration).__name__
        raise InputError(
            f"calibration must be batches, such as a list of tensors or of keyword arguments, or a function of the "
            f"model, got {kind}"
        )
    batches = calibration if isinstance(calibration, Sequence) else list(calibration)
    if not len(batches):
        raise InputError("calibration has no batch")
    return batches


def digest_of(calibration: Calibration | None) -> str:
    """SHA-256 of batches of tensors and plain values; of a function nothing is known but that it is one."""
    found = hashlib.sha256()
    _digest(None if callable(calibration) else calibration, found)
    return f"{callable(calibration)} {found.hexdigest()}"


def _digest(value: Any, found: hashlib._Hash) -> None:
    if isinstance(value, torch.Tensor):
        found.update(f"tensor {value.dtype} {list(value.shape)}".encode())
        if value.numel():
            found.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        for key in value:
            found.update(f"key {key!r}".encode())
            _digest(value[key], found)
    elif isinstance(value, str | int | float | bool | None):
        found.update(repr(value).encode())
    elif isinstance(value, Iterable):
        found.update(b"list")
        for one in value:
            _digest(one, found)
    else:
        found.update(type(value).__name__.encode())
