"""Dtypes by the names that signatures use, and what a tensor must be, in one line when it is not."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kernel_space.core.errors import InputError
from kernel_space.core.signature import TensorSpec

DTYPES = {
    "uint8": torch.uint8,
    "int8": torch.int8,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "int32": torch.int32,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "int64": torch.int64,
}
FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def view_as(data: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The bytes ``data`` (uint8, as many as ``spec`` has) as the tensor that ``spec`` describes."""
    return data.view(DTYPES[spec.dtype]).view(spec.shape)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, uint8, one-dimensional."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def element_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same as uint8 [elements, bytes of one]: what two elements must agree in to be the same to the bit."""
    return bytes_of(tensor).view(tensor.numel(), tensor.element_size())


def require_specs(tensors: Mapping[str, torch.Tensor], specs: Mapping[str, TensorSpec]) -> None:
    """Raise ``InputError`` unless every tensor of ``specs`` is there with its dtype and shape."""
    for name, spec in specs.items():
        if name not in tensors:
            raise InputError(f"{name} is missing; the tensors are {', '.join(tensors)}")
        require_tensor(tensors[name], name, (DTYPES[spec.dtype],), spec.shape)


def require_tensor(
    tensor: torch.Tensor, name: str, dtypes: tuple[torch.dtype, ...], shape: tuple[int, ...]
) -> None:
    """Raise ``InputError`` unless ``tensor`` has one of ``dtypes`` and this shape."""
    if tensor.dtype not in dtypes or tuple(tensor.shape) != shape:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        came = str(tensor.dtype).removeprefix("torch.")
        raise InputError(f"{name} must be {wanted} {list(shape)}, got {came} {list(tensor.shape)}")


def require_matrix(tensor: torch.Tensor, name: str, dtypes: tuple[torch.dtype, ...], rows: int) -> int:
    """Columns of ``tensor``. Raise ``InputError`` unless it is ``[rows, columns]`` with one of ``dtypes``."""
    columns = tensor.shape[1] if tensor.ndim == 2 else 0
    require_tensor(tensor, name, dtypes, (rows, columns))
    return columns
