"""TensorMap: the TMA descriptor (CUtensorMap, 128 bytes, tiled mode) as its fields.

The bit layout was verified field by field against ``cuTensorMapEncodeTiled`` of a Hopper driver and against
the descriptors that CuTe DSL's host code builds. Only the first 64 bytes carry meaning: behind them CuTe DSL
leaves whatever was on its stack and the driver keeps notes, so they are neither decoded nor compared.
"""

from __future__ import annotations

import dataclasses
import struct

from kernel_space.core.errors import InputError

TENSOR_MAP_BYTES = 128
TENSOR_MAP_ALIGNMENT = 64  # of the grid-constant kernel parameter in PTX
MAX_RANK = 5


@dataclasses.dataclass(frozen=True)
class ElementType:
    """``bits`` per element in global memory; ``16U4_ALIGN8B`` is packed fp4, an element of 4 bits.

    ``16U4_ALIGN16B`` (seen in CuTe DSL's descriptors) and ``16U6_ALIGN16B`` (inferred) put 16 elements, 8 or 12 bytes,
    into each 16 bytes of shared memory.
    """

    name: str
    bits: int


ELEMENT_TYPES = (
    ElementType("U8", 8),
    ElementType("U16", 16),
    ElementType("U32", 32),
    ElementType("S32", 32),
    ElementType("U64", 64),
    ElementType("S64", 64),
    ElementType("F16", 16),
    ElementType("F32", 32),
    ElementType("F32_FTZ", 32),
    ElementType("F64", 64),
    ElementType("BF16", 16),
    ElementType("16U4_ALIGN8B", 4),
    ElementType("16U4_ALIGN16B", 4),
    ElementType("16U6_ALIGN16B", 6),
)
_INTERLEAVE_BYTES = {0: 0, 1: 16, 2: 32}
_SWIZZLE_BYTES = {0: 0, 1: 32, 2: 64, 3: 128}
_L2_PROMOTION_BYTES = {0: 0, 1: 64, 2: 128, 3: 256}
_SWIZZLE_ATOM_BYTES = {0: 16, 1: 32}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorMap:
    """One tensor and the box of it that a TMA instruction moves. Tuples start with the contiguous dimension.

    ``address``           global address, bytes
    ``dims``, ``box``     elements, one entry per dimension
    ``strides``           bytes, one entry per dimension but the first (whose stride is one element)
    ``element_strides``   elements, one entry per dimension
    ``swizzle_bytes``     span of the shared-memory swizzle: 0 (none), 32, 64 or 128
    ``swizzle_atom_bytes`` unit that the swizzle moves: 16 or 32
    ``interleave_bytes``  0, 16 or 32
    ``l2_promotion_bytes`` 0, 64, 128 or 256
    ``oob_fill_nan``      elements out of bounds read as NaN instead of 0
    ``round_to_tf32``     F32 data is rounded to TF32 on the way
    ``is_large``          bit 21: CuTe DSL sets it for tensors of 128 KiB and more; no known effect
    """

    address: int
    element_type: ElementType
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave_bytes: int
    swizzle_bytes: int
    swizzle_atom_bytes: int
    l2_promotion_bytes: int
    oob_fill_nan: bool
    round_to_tf32: bool
    is_large: bool

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def box_bytes(self) -> int:
        """Bytes one load of the box adds to its barrier's transaction count.

        Without interleave the element stride of dimension 0 has no effect (measured on Hopper).
        """
        elements = self.box[0] if not self.interleave_bytes else -(-self.box[0] // self.element_strides[0])
        for extent, step in zip(self.box[1:], self.element_strides[1:], strict=True):
            elements *= -(-extent // step)
        return elements * self.element_type.bits // 8


def decode_tensor_map(data: bytes) -> TensorMap:
    """The fields of a 128-byte descriptor. Raises ``InputError`` for a code or bit of unknown meaning."""
    if len(data) != TENSOR_MAP_BYTES:
        raise InputError(f"a tensor map has {TENSOR_MAP_BYTES} bytes, got {len(data)}")
    words = struct.unpack_from("<16I", data)
    flags = words[2]
    rank = (flags >> 4 & 7) + 1
    _reject_unknown_bits(words, rank)
    strides = _strides(words)
    return TensorMap(
        address=words[0] | words[1] << 32,
        element_type=_element_type(flags >> 7 & 15),
        dims=tuple(word + 1 for word in words[8 : 8 + rank]),
        strides=strides[: rank - 1],
        box=tuple(byte + 1 for byte in data[55 : 55 + rank]),
        element_strides=tuple((words[13] >> 3 * i & 7) + 1 for i in range(rank)),
        interleave_bytes=_code("interleave", _INTERLEAVE_BYTES, flags >> 11 & 3),
        swizzle_bytes=_code("swizzle", _SWIZZLE_BYTES, flags >> 13 & 3),
        swizzle_atom_bytes=_code("swizzle atom", _SWIZZLE_ATOM_BYTES, flags >> 19 & 3),
        l2_promotion_bytes=_code("L2 promotion", _L2_PROMOTION_BYTES, flags >> 17 & 3),
        oob_fill_nan=bool(flags >> 15 & 1),
        round_to_tf32=bool(flags >> 16 & 1),
        is_large=bool(flags >> 21 & 1),
    )


def _strides(words: tuple[int, ...]) -> tuple[int, ...]:
    """Bytes between neighbours in dimensions 1..4: 36 bits in units of 16 bytes, the top 4 bits in word 7."""
    return tuple((words[3 + i] | (words[7] >> 4 * i & 15) << 32) << 4 for i in range(MAX_RANK - 1))


def _reject_unknown_bits(words: tuple[int, ...], rank: int) -> None:
    """Im2col descriptors and whatever newer drivers add set bits that this layout knows nothing of."""
    if rank > MAX_RANK:
        raise InputError(f"a tensor map has at most {MAX_RANK} dimensions, got {rank}")
    unknown = {
        "word 2 bits 22..31": words[2] >> 22,
        "word 7 bits 16..31": words[7] >> 16,
        "word 13 bits 15..23": words[13] >> 15 & 0x1FF,
        "word 15": words[15],
    }
    for where, value in unknown.items():
        if value:
            raise InputError(f"tensor map {where} must be 0 in tiled mode, got {value:#x}")


def _element_type(code: int) -> ElementType:
    if code >= len(ELEMENT_TYPES):
        raise InputError(
            f"tensor map element type code {code} is not known; known are 0..{len(ELEMENT_TYPES) - 1}"
        )
    return ELEMENT_TYPES[code]


def _code(field: str, values: dict[int, int], code: int) -> int:
    if code not in values:
        raise InputError(
            f"tensor map {field} code {code} is not known; known are {', '.join(map(str, values))}"
        )
    return values[code]
