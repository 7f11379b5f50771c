"""The safetensors format, read and written here: a JSON header, then the bytes of the tensors. Nothing in it can run.

    8 bytes   length of the header, little-endian
    header    {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__": {...}}
    bytes     of the tensors, offsets from the end of the header, without gaps

A file may come from anybody: everything in the header is checked against the size of the file before a byte of a tensor
is looked at. Tensors are views of the mapped file, so that a layer that is converted is all that takes memory.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import AnyPath, open_plain
from tuner.files.store import CorruptFile, atomic_write, parse_json

MOST_HEADER = 100_000_000  # bytes, as the format's own library allows
METADATA = "__metadata__"
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LENGTH = struct.Struct("<Q")
_MOST_ELEMENTS = 1 << 62


def read_tensors(path: AnyPath) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """(tensors by name, metadata) of a safetensors file; the tensors read it as they are used.

    Raises ``InputError`` for what is no plain file and for any damage: one line with the path and what is wrong.
    """
    path = Path(path)
    try:
        fd = open_plain(path, os.O_RDONLY, follow=True)
        try:
            size = os.fstat(fd).st_size
            memory = mmap.mmap(fd, 0, access=mmap.ACCESS_COPY) if size else b""
        finally:
            os.close(fd)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        start, header = _header(path, memory, size)
        metadata = _metadata(header.pop(METADATA, {}))
        entries = {name: _entry(name, entry) for name, entry in header.items()}
        _require_whole({name: entry[2] for name, entry in entries.items()}, size - start)
    except InputError as error:
        raise InputError(f"{path} is no whole safetensors file: {error}") from None
    return {name: _tensor(memory, start, *entry) for name, entry in entries.items()}, metadata


def _header(path: Path, memory: mmap.mmap | bytes, size: int) -> tuple[int, dict[str, Any]]:
    """(where the bytes of the tensors start, the parsed header)."""
    if size < _LENGTH.size:
        raise InputError(f"it has {size} bytes, and the length of its header takes {_LENGTH.size}")
    length = _LENGTH.unpack(memory[: _LENGTH.size])[0]
    if length > MOST_HEADER or length > size - _LENGTH.size:
        raise InputError(f"its header should have {length} bytes, and the file has {size}")
    try:
        header = parse_json(memory[_LENGTH.size : _LENGTH.size + length], path)
    except CorruptFile as error:
        raise InputError(f"its header does not parse, {error.what}") from None
    if not isinstance(header, dict):
        raise InputError("its header is no JSON object")
    return _LENGTH.size + length, header


def _metadata(found: Any) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise InputError("its metadata must be text by name")
    return found


def _entry(name: str, entry: Any) -> tuple[torch.dtype, list[int], tuple[int, int]]:
    """(dtype, shape, (begin, end)) of a tensor, which agree with one another."""
    shown = f"tensor {name!a:.100}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise InputError(f"{shown} must have dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise InputError(f"{shown} has dtype {dtype!a:.40}; the dtypes are {', '.join(DTYPES)}")
    if not _whole_numbers(shape) or not _whole_numbers(offsets) or len(offsets) != 2 or len(shape) > 16:
        raise InputError(f"{shown} must have a shape and two offsets of whole numbers")
    needed = math.prod(shape) * DTYPES[dtype].itemsize
    if max(shape, default=0) > _MOST_ELEMENTS or offsets[1] - offsets[0] != needed:
        raise InputError(f"{shown} has {offsets[1] - offsets[0]} bytes, {dtype} {shape} takes {needed}")
    return DTYPES[dtype], shape, (offsets[0], offsets[1])


def _whole_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(
        type(one) is int and one >= 0 and one.bit_length() < 64 for one in value
    )


def _require_whole(spans: Mapping[str, tuple[int, int]], size: int) -> None:
    """Every byte behind the header belongs to one tensor."""
    end = 0
    for name, span in sorted(spans.items(), key=lambda item: item[1]):
        if span[0] != end:
            raise InputError(
                f"tensor {name!a:.100} begins at byte {span[0]}, and the one before ends at {end}"
            )
        end = span[1]
    if end != size:
        raise InputError(f"its tensors take {end} bytes, and it has {size} for them")


def _tensor(
    memory: mmap.mmap | bytes, start: int, dtype: torch.dtype, shape: list[int], span: tuple[int, int]
) -> torch.Tensor:
    if span[0] == span[1]:
        return torch.empty(shape, dtype=dtype)
    raw = torch.frombuffer(memory, dtype=torch.uint8, offset=start + span[0], count=span[1] - span[0])
    if raw.data_ptr() % dtype.itemsize:
        raw = raw.clone()  # a writer need not align
    return raw.view(dtype).view(shape)


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
