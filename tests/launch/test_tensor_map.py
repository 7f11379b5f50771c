"""The TMA descriptor's bit layout, against words put together by hand."""

from __future__ import annotations

import dataclasses
import struct

import pytest

from kernel_space.core.errors import InputError
from kernel_space.launch.tensor_map import ELEMENT_TYPES, decode_tensor_map


def descriptor(words: dict[int, int], noise: int = 0) -> bytes:
    """``words``: index -> 32-bit word; the second half of the 128 bytes is filled with ``noise``."""
    return struct.pack("<16I", *(words.get(i, 0) for i in range(16))) + bytes([noise]) * 64


# A: fp4 [M=768][K=2048], 3 batches: rows of 1024 bytes, batches of 786432 bytes, box 256 x 128 x 1, swizzle
# 128. w2 = 2 | (3-1)<<4 | 11<<7 | 3<<13 | 2<<17 | 1<<21; strides in units of 16 bytes; box bytes start at
# byte 55.
FP4 = {
    0: 0x4000_0000,
    1: 0x0000_7F12,
    2: 2 | 2 << 4 | 11 << 7 | 3 << 13 | 2 << 17 | 1 << 21,
    3: 1024 >> 4,
    4: 786432 >> 4,
    8: 2048 - 1,
    9: 768 - 1,
    10: 3 - 1,
    13: 255 << 24,
    14: 127 | 0 << 8,
}


def test_every_field_of_a_packed_fp4_operand() -> None:
    got = decode_tensor_map(descriptor(FP4))
    assert got.address == 0x7F12_4000_0000
    assert (got.element_type.name, got.element_type.bits) == ("16U4_ALIGN8B", 4)
    assert (got.rank, got.dims, got.strides) == (3, (2048, 768, 3), (1024, 786432))
    assert (got.box, got.element_strides) == ((256, 128, 1), (1, 1, 1))
    assert (got.swizzle_bytes, got.swizzle_atom_bytes, got.interleave_bytes) == (128, 16, 0)
    assert got.l2_promotion_bytes == 128
    assert (got.oob_fill_nan, got.round_to_tf32, got.is_large) == (False, False, True)
    assert got.box_bytes == 256 * 128 // 2


def test_the_word_seen_for_a_column_major_float32_output() -> None:
    """0x002c63a2 was read from CuTe DSL's own descriptor of an fp32 column-major store."""
    got = decode_tensor_map(descriptor({2: 0x002C63A2}))
    assert (got.element_type.name, got.rank, got.swizzle_bytes) == ("F32", 3, 128)
    assert (got.swizzle_atom_bytes, got.l2_promotion_bytes, got.is_large) == (32, 128, True)


def test_five_dimensions_with_36_bit_strides_and_element_strides() -> None:
    words = {
        2: 4 << 4 | 1 << 7 | 1 << 15 | 2 << 11,
        **dict.fromkeys((3, 4, 5, 6), 1),
        7: 0x4321,  # bits 35..32 of strides 1, 2, 3, 4 in units of 16 bytes
        **{8 + i: i for i in range(5)},
        13: 0 | 1 << 3 | 2 << 6 | 3 << 9 | 7 << 12 | 10 << 24,
        14: 11 | 12 << 8 | 13 << 16 | 14 << 24,
    }
    got = decode_tensor_map(descriptor(words))
    assert got.strides == tuple((high << 32 | 1) * 16 for high in (1, 2, 3, 4))
    assert got.dims == (1, 2, 3, 4, 5)
    assert got.box == (11, 12, 13, 14, 15)
    assert got.element_strides == (1, 2, 3, 4, 8)
    plain = dataclasses.replace(got, interleave_bytes=0, element_strides=(4, 2, 3, 4, 8))
    assert plain.box_bytes == got.box_bytes  # without interleave the step of dimension 0 has no effect
    assert got.box_bytes == 11 * 6 * 5 * 4 * 2 * 2  # extents over element strides, rounded up
    assert (got.oob_fill_nan, got.interleave_bytes, got.element_type.name) == (True, 32, "U16")


@pytest.mark.parametrize(("driver_enum", "code"), [("F32", 7), ("F32_FTZ", 8), ("F64", 9), ("BF16", 10)])
def test_type_codes_differ_from_the_driver_enum(driver_enum: str, code: int) -> None:
    assert decode_tensor_map(descriptor({2: code << 7})).element_type.name == driver_enum


def test_tf32_is_float32_with_a_rounding_bit() -> None:
    got = decode_tensor_map(descriptor({2: 7 << 7 | 1 << 16}))
    assert (got.element_type.name, got.round_to_tf32) == ("F32", True)


def test_the_second_half_is_ignored() -> None:
    assert decode_tensor_map(descriptor(FP4, noise=0)) == decode_tensor_map(descriptor(FP4, noise=0xA5))


@pytest.mark.parametrize(
    ("word", "value", "message"),
    [
        (2, len(ELEMENT_TYPES) << 7, "element type code 14"),
        (2, 3 << 11, "interleave code 3"),
        (2, 2 << 19, "swizzle atom code 2"),
        (2, 1 << 22, "word 2 bits 22..31"),
        (2, 5 << 4, "at most 5 dimensions, got 6"),
        (7, 1 << 16, "word 7"),
        (13, 1 << 15, "word 13"),
        (15, 1, "word 15"),
    ],
)
def test_unknown_codes_and_bits_are_errors(word: int, value: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        decode_tensor_map(descriptor({word: value}))


def test_a_descriptor_has_128_bytes() -> None:
    with pytest.raises(InputError, match="128 bytes, got 64"):
        decode_tensor_map(bytes(64))
