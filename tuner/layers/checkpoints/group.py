"""The tensors of one layer of a checkpoint, checked as they are taken."""

from __future__ import annotations

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.tensors import FLOAT_DTYPES

Shape = tuple[int | None, ...]
_HALF = (torch.float16, torch.bfloat16)


class Group:
    """``tensors`` by their own names (``wscales``), ``names``: their full names in the checkpoint, for messages."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tensors: dict[str, torch.Tensor] = {}
        self.names: dict[str, str] = {}
        self.taken: set[str] = set()

    def add(self, own: str, full: str, tensor: torch.Tensor) -> None:
        if own in self.tensors:
            raise InputError(
                f"{full} and {self.names[own]} are the same tensor of one layer: drop one of them"
            )
        self.tensors[own], self.names[own] = tensor, full

    def __contains__(self, own: str) -> bool:
        return own in self.tensors

    def take(self, own: str, dtypes: tuple[torch.dtype, ...], shape: Shape) -> torch.Tensor:
        """Tensor ``own``, which must have one of ``dtypes`` and that shape, None for any size, and be finite.

        Raises ``InputError``: one line with the tensor's name.
        """
        tensor = self.maybe(own, dtypes, shape)
        if tensor is None:
            there = ", ".join(sorted(self.tensors))
            raise InputError(f"layer {self.name!r} lacks {own}; it has {there}")
        return tensor

    def maybe(self, own: str, dtypes: tuple[torch.dtype, ...], shape: Shape) -> torch.Tensor | None:
        """As ``take``; None where it is not there."""
        self.taken.add(own)
        tensor = self.tensors.get(own)
        if tensor is None:
            return None
        fits = tensor.ndim == len(shape) and all(
            want in (None, size) for want, size in zip(shape, tensor.shape, strict=True)
        )
        if tensor.dtype not in dtypes or not fits or not tensor.numel():
            sizes = ", ".join("any" if size is None else str(size) for size in shape)
            wanted = " or ".join(map(_name, dtypes))
            raise InputError(
                f"{self.names[own]} must be {wanted} [{sizes}], got {_name(tensor.dtype)} {list(tensor.shape)}"
            )
        require_finite(tensor, self.names[own])
        return tensor

    def number(self, own: str) -> float | None:
        """A tensor of one floating-point element; None where it is not there."""
        tensor = self.tensors.get(own)
        if tensor is not None and tensor.numel() != 1:
            raise InputError(f"{self.names[own]} must be one number, got {list(tensor.shape)}")
        found = self.maybe(own, FLOAT_DTYPES, () if tensor is None else tuple(tensor.shape))
        return None if found is None else found.item()

    def unknown(self) -> list[str]:
        """Full names of what nobody took."""
        return [full for own, full in self.names.items() if own not in self.taken]

    def dtype(self, *own: str) -> torch.dtype:
        """That of the first of these tensors that has 16 bits; bfloat16 where none has."""
        found = (self.tensors[name].dtype for name in own if name in self.tensors)
        return next((dtype for dtype in found if dtype in _HALF), torch.bfloat16)


def require_finite(tensor: torch.Tensor, name: str) -> None:
    """Raises ``InputError`` for the first element that is NaN or infinite; float8 is asked as bytes."""
    if tensor.dtype == torch.float8_e4m3fn:
        bad = (tensor.contiguous().view(torch.uint8) & 0x7F) == 0x7F
    elif tensor.is_floating_point():
        bad = ~tensor.isfinite()
    else:
        return
    if bad.any():
        index = bad.nonzero()[0].tolist()
        raise InputError(f"{name} must be finite, got {tensor[tuple(index)].item()} at {index}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
