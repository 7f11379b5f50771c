"""Checks of tensors that the run time makes itself, of any operator."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from kernel_space.core.errors import InputError
from tuner.runtime.load.trampoline import ALIGN


def require_no_grad(what: str, tensors: Iterable[tuple[str, torch.Tensor | None]]) -> None:
    """Raises ``InputError`` if gradients are recorded and one of ``tensors``, with their names, wants one."""
    if not torch.is_grad_enabled():
        return
    for name, tensor in tensors:
        if tensor is not None and tensor.requires_grad:
            raise InputError(
                f"{what} has no backward pass but {name} requires grad; call it under torch.no_grad() or "
                f"torch.inference_mode(), or give {name}.detach()"
            )


def require_launchable(tensor: torch.Tensor, name: str, device: torch.device) -> None:
    """Raises ``InputError`` unless ``tensor`` is contiguous, aligned and on ``device``, where it has memory."""
    if tensor.device != device:
        raise InputError(f"{name} must be on {device} like the other operands, got {tensor.device}")
    if not tensor.is_contiguous():
        raise InputError(
            f"{name} must be contiguous, got strides {tuple(tensor.stride())}; call .contiguous()"
        )
    require_memory(tensor, name)
    if tensor.data_ptr() % ALIGN:
        raise InputError(f"{name} must start at a multiple of {ALIGN} bytes; call .clone()")


def require_memory(tensor: torch.Tensor, name: str) -> None:
    """Raises ``InputError`` for a tensor whose storage is gone: resized to nothing, or of the meta device."""
    if tensor.numel() and not tensor.data_ptr():
        raise InputError(f"{name} has no memory: its storage was released; bring it back before the call")
