"""NVFP4 in plain Python: exact rationals, one element at a time, nothing shared with the code under test."""

from __future__ import annotations

import struct
from fractions import Fraction

E2M1_VALUES = [Fraction(x) for x in ("0", "1/2", "1", "3/2", "2", "3", "4", "6")]


def e4m3_value(byte: int) -> Fraction:
    """OCP 8-bit floating point: sign, 4 exponent bits of bias 7, 3 mantissa bits."""
    sign, exponent, mantissa = byte >> 7, (byte >> 3) & 15, byte & 7
    assert byte & 0x7F != 0x7F, "NaN"
    if exponent == 0:
        magnitude = Fraction(mantissa, 8) * Fraction(1, 2**6)
    else:
        magnitude = (1 + Fraction(mantissa, 8)) * Fraction(2) ** (exponent - 7)
    return -magnitude if sign else magnitude


E4M3_VALUES = [e4m3_value(byte) for byte in range(0x7F)]


def e2m1_value(code: int) -> Fraction:
    return -E2M1_VALUES[code & 7] if code & 8 else E2M1_VALUES[code]


def nearest(x: Fraction, grid: list[Fraction]) -> int:
    """Index of the element of the rising ``grid`` nearest to x >= 0; a tie goes to the even index."""
    return min(range(len(grid)), key=lambda i: (abs(grid[i] - x), i % 2))


def encode_e2m1(x: float) -> int:
    sign = struct.pack(">d", x)[0] >> 7
    return nearest(abs(Fraction(x)), E2M1_VALUES) | sign << 3


def quantize_block(block: list[float], global_scale: float = 1.0) -> tuple[list[int], int]:
    """16 numbers -> (16 codes, scale byte)."""
    amax = max(abs(Fraction(x)) for x in block)
    byte = nearest(amax / 6 / Fraction(global_scale), E4M3_VALUES)
    step = E4M3_VALUES[byte] * Fraction(global_scale)
    if step == 0:
        return [0] * 16, 0
    signs = [struct.pack(">d", x)[0] >> 7 for x in block]
    codes = [nearest(abs(Fraction(x)) / step, E2M1_VALUES) for x in block]
    return [code | sign << 3 for code, sign in zip(codes, signs, strict=True)], byte


def fp32(x: float) -> float:
    """``x`` rounded to fp32. A product of two fp32 numbers is exact before."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def quantize_activations(block: list[float]) -> tuple[list[int], int]:
    """16 finite fp32 numbers -> (16 codes, scale byte): products with reciprocals, each step rounded to fp32."""
    byte = nearest(Fraction(fp32(max(map(abs, block)) * fp32(1 / 6))), E4M3_VALUES)
    if not byte:
        return [0] * 16, 0
    inverse = fp32(1 / float(E4M3_VALUES[byte]))
    return [encode_e2m1(min(fp32(x * inverse), 1e30)) for x in block], byte


def blocked_offset(row: int, group: int, groups: int) -> int:
    """Byte of scale (row, group) in blocks of 128 rows x 4 groups, [32 rows][4 row groups][4 groups] inside."""
    blocks_along_k = -(-groups // 4)
    block = (row // 128) * blocks_along_k + group // 4
    return block * 512 + (row % 32) * 16 + ((row % 128) // 32) * 4 + group % 4


def packed_element(packed: bytes, blocked: bytes, k: int, row: int, column: int) -> Fraction:
    """One element of a packed operand with blocked scales; K = k."""
    byte = packed[row * (k // 2) + column // 2]
    code = byte >> 4 if column % 2 else byte & 15
    return e2m1_value(code) * e4m3_value(blocked[blocked_offset(row, column // 16, k // 16)])
