"""TMA descriptors built bit by bit from the field table, for the tests of the machine."""

from __future__ import annotations

import struct
from collections.abc import Sequence

TYPES = {
    "u8": (0, 8),
    "u16": (1, 16),
    "u32": (2, 32),
    "f16": (6, 16),
    "f32": (7, 32),
    "bf16": (10, 16),
    "fp4": (11, 4),
}
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}


def tensor_map(
    address: int, kind: str, dims: Sequence[int], strides: Sequence[int], box: Sequence[int], swizzle: int = 0
) -> bytes:
    """``dims`` and ``box`` in elements from the contiguous dimension outwards, ``strides`` in bytes of dims 1.."""
    code, _ = TYPES[kind]
    words = [0] * 32
    words[0], words[1] = address & 0xFFFFFFFF, address >> 32
    words[2] = 2 | (len(dims) - 1) << 4 | code << 7 | SWIZZLES[swizzle] << 13 | 2 << 17
    for number, stride in enumerate(strides):
        words[3 + number] = stride >> 4 & 0xFFFFFFFF
        words[7] |= (stride >> 36) << 4 * number
    for number, dim in enumerate(dims):
        words[8 + number] = dim - 1
    data = bytearray(struct.pack("<32I", *words))
    for number, extent in enumerate(box):
        data[55 + number] = extent - 1
    return bytes(data)
