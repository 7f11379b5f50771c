"""Safetensors files: read by the format's own library, written here. Nothing in one can run.

    8 bytes   length of the header, little-endian
    header    {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__": {...}}
    bytes     of the tensors, offsets from the end of the header, without gaps

Tensors are views of the mapped file, so that a layer that is converted is all that takes memory. The library checks the
header against the size of the file. It does not write as this program does: piece by piece into a file that a kill
leaves nothing of and that is on the disk when it takes the place of the old one.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import AnyPath, check_plain_file
from tuner.files.store import atomic_write

METADATA = "__metadata__"
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
_LENGTH = struct.Struct("<Q")
_MOST_REASON = 200  # characters of what the library says


def read_tensors(path: AnyPath) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """(tensors by name, metadata) of a safetensors file; the tensors read it as they are used.

    Raises ``InputError`` for what is no plain file and for any damage: one line with the path and what is wrong.
    """
    path = Path(path)
    try:
        check_plain_file(path.resolve(), limit=1 << 62)
        with safetensors.safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            return tensors, file.metadata() or {}
    except safetensors.SafetensorError as error:
        reason = str(error).partition("\n")[0].removeprefix("Error while deserializing header: ")
        raise InputError(f"{path} is no whole safetensors file: {reason[:_MOST_REASON]}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None


def write_tensors(path: AnyPath, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file, the same bytes for the same tensors and metadata, in the order of ``tensors``.

    Larger elements come first, so that all are aligned. Raises ``StoreError`` when the disk refuses; what was there
    before is then kept.
    """
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    atomic_write(Path(path), _pieces(text, (tensor for _, tensor in ordered)), follow=True)


def _pieces(header: bytes, tensors: Iterable[torch.Tensor]) -> Iterator[bytes | memoryview]:
    yield _LENGTH.pack(len(header))
    yield header
    for tensor in tensors:
        if tensor.numel():
            yield raw_bytes(tensor)


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor with elements, row by row."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
