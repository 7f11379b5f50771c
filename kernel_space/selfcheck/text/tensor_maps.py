"""Tensor maps of probes: the bytes that the machine gets, and the arguments that the driver gets.

Layout of the 128 bytes: ``kernel_space.launch.tensor_map``, which reads what is written here.
"""

from __future__ import annotations

import math
import struct

from kernel_space.selfcheck.text.probe import MapSpec

# name -> (code in the descriptor, bits per element, code of the driver's enum)
DTYPES = {
    "uint8": (0, 8, 0), "uint16": (1, 16, 1), "uint32": (2, 32, 2), "int32": (3, 32, 3), "uint64": (4, 64, 4),
    "int64": (5, 64, 5), "float16": (6, 16, 6), "float32": (7, 32, 7), "float32_ftz": (8, 32, 10),
    "float64": (9, 64, 8), "bfloat16": (10, 16, 9), "tfloat32": (7, 32, 11), "tfloat32_ftz": (8, 32, 12),
    "16u4_align8b": (11, 4, 13),
}  # fmt: skip
# swizzle -> (code of the span, code of the atom, code of the driver's enum)
SWIZZLES: dict[int | str, tuple[int, int, int]] = {
    0: (0, 0, 0), 32: (1, 0, 1), 64: (2, 0, 2), 128: (3, 0, 3), "128_atom_32": (3, 1, 4),
    "128_atom_32_flip_8": (3, 2, 5), "128_atom_64": (3, 3, 6),
}  # fmt: skip
INTERLEAVES = {0: 0, 16: 1, 32: 2}


def element_bits(spec: MapSpec) -> int:
    return DTYPES[spec.dtype][1]


def span(spec: MapSpec) -> int:
    """Bytes of the swizzle pattern's row; 0 without a swizzle."""
    return spec.swizzle if isinstance(spec.swizzle, int) else 128


def steps(spec: MapSpec) -> tuple[int, ...]:
    return spec.element_strides or (1,) * len(spec.dims)


def box_extents(spec: MapSpec) -> tuple[int, ...]:
    """Elements a load brings per dimension. Without interleave the step of dimension 0 has no effect."""
    return (
        spec.box[0],
        *(-(-extent // step) for extent, step in zip(spec.box[1:], steps(spec)[1:], strict=True)),
    )


def box_bytes(spec: MapSpec) -> int:
    """Bytes that one load of the box adds to a barrier's transaction count."""
    return math.prod(box_extents(spec)) * element_bits(spec) // 8


def footprint(spec: MapSpec) -> int:
    """Bytes of shared memory from the first to behind the last row, rows as wide as the swizzle's span at least."""
    inner = spec.box[0] * element_bits(spec) // 8
    return box_bytes(spec) // inner * max(inner, span(spec))


def encode(spec: MapSpec, address: int) -> bytes:
    """The 128-byte descriptor of ``spec`` over a buffer at ``address``."""
    code, _, _ = DTYPES[spec.dtype]
    span_code, atom_code, _ = SWIZZLES[spec.swizzle]
    rank, words = len(spec.dims), [0] * 16
    where = address + spec.offset
    words[0], words[1] = where & 0xFFFFFFFF, where >> 32
    words[2] = (
        (rank - 1) << 4 | code << 7 | INTERLEAVES[spec.interleave] << 11 | span_code << 13 | spec.oob_nan << 15
        | spec.dtype.startswith("tfloat32") << 16 | atom_code << 19
    )  # fmt: skip
    for n, stride in enumerate(spec.strides):
        words[3 + n] = stride >> 4 & 0xFFFFFFFF
        words[7] |= (stride >> 36) << 4 * n
    for n in range(rank):
        words[8 + n] = spec.dims[n] - 1
        words[13] |= (steps(spec)[n] - 1) << 3 * n
    data = bytearray(struct.pack("<16I", *words)) + bytes(64)
    data[55 : 55 + rank] = bytes(extent - 1 for extent in spec.box)
    return bytes(data)
