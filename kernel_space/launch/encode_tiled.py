"""``cuTensorMapEncodeTiled`` without a driver: its arguments to the 128 bytes that ``tensor_map.py`` decodes.

Arguments and their limits: CUDA driver API, "Tensor Map Object Management". Bits: ``tensor_map.py``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from kernel_space.core.errors import InputError
from kernel_space.launch.tensor_map import ELEMENT_TYPES, MAX_RANK, TENSOR_MAP_BYTES

# CUtensorMapDataType in order -> (name of the element type, rounded to TF32)
_DATA_TYPES = (
    *(
        (name, False)
        for name in ("U8", "U16", "U32", "S32", "U64", "S64", "F16", "F32", "F64", "BF16", "F32_FTZ")
    ),
    ("F32", True),
    ("F32_FTZ", True),
    *((name, False) for name in ("16U4_ALIGN8B", "16U4_ALIGN16B", "16U6_ALIGN16B")),
)
# CUtensorMapSwizzle in order -> (code of the span, code of the atom)
_SWIZZLES = ((0, 0), (1, 0), (2, 0), (3, 0), (3, 1))
_CODES = {element.name: code for code, element in enumerate(ELEMENT_TYPES)}


def encode_tiled(
    data_type: int,
    address: int,
    dims: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    element_strides: Sequence[int],
    *,
    interleave: int,
    swizzle: int,
    l2_promotion: int,
    oob_fill: int,
) -> bytes:
    """The descriptor. ``strides`` in bytes of all dimensions but the first; the last four are the driver's enumerators.

    Raises ``InputError`` for what the driver refuses, and for swizzles that are not modelled.
    """
    _check(data_type, address, dims, strides, box, element_strides, swizzle)
    name, tf32 = _DATA_TYPES[data_type]
    span, atom = _SWIZZLES[swizzle]
    words = [address & 0xFFFFFFFF, address >> 32, *[0] * 30]
    words[2] = (
        2 | (len(dims) - 1) << 4 | _CODES[name] << 7 | interleave << 11 | span << 13 | oob_fill << 15
        | tf32 << 16 | l2_promotion << 17 | atom << 19
    )  # fmt: skip
    for number, stride in enumerate(strides):
        words[3 + number] = stride >> 4 & 0xFFFFFFFF
        words[7] |= stride >> 36 << 4 * number
    for number, (extent, step) in enumerate(zip(dims, element_strides, strict=True)):
        words[8 + number] = extent - 1
        words[13] |= (step - 1) << 3 * number
    data = bytearray(struct.pack(f"<{TENSOR_MAP_BYTES // 4}I", *words))
    data[55 : 55 + len(box)] = bytes(extent - 1 for extent in box)
    return bytes(data)


def _check(
    data_type: int,
    address: int,
    dims: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    element_strides: Sequence[int],
    swizzle: int,
) -> None:
    limits = (
        (0 <= data_type < len(_DATA_TYPES), f"data type {data_type} is not known"),
        (0 <= swizzle < len(_SWIZZLES), f"swizzle {swizzle} is not modelled"),
        (1 <= len(dims) <= MAX_RANK, f"{len(dims)} dimensions, of 1 to {MAX_RANK}"),
        (address % 16 == 0, f"the address {address:#x} is not a multiple of 16"),
        (all(0 < extent <= 1 << 32 for extent in dims), f"sizes {tuple(dims)}, of 1 to 2^32"),
        (
            all(s % 16 == 0 and s < 1 << 40 for s in strides),
            f"strides {tuple(strides)}, of multiples of 16 below 2^40",
        ),
        (all(0 < extent <= 256 for extent in box), f"a box of {tuple(box)}, of 1 to 256"),
        (
            all(0 < step <= 8 for step in element_strides),
            f"element strides {tuple(element_strides)}, of 1 to 8",
        ),
    )
    for good, words in limits:
        if not good:
            raise InputError(f"cuTensorMapEncodeTiled is given {words}")
