"""Value conversions of ``cvt`` on register bits, and atomic read-modify-write functions."""

from __future__ import annotations

import numpy as np

from kernel_space.machine.values.floats import BITS, decode, encode, encode_toward_zero, flush, halves, join
from kernel_space.machine.values.formats import encode_narrow, encode_ue8m0, values_of
from kernel_space.machine.values.lanes import (
    MASKS,
    UNSIGNED,
    Array,
    Value,
    ndarray,
    resize,
    signed,
)


def float_to_int(a: Value, kind: str, width: int, is_signed: bool, rounding: str, register: int) -> Value:
    """Rounded as the modifier says (``rzi`` by default), clamped to the type; NaN gives 0, in 64 bits the sign bit."""
    numbers = decode(a, kind).astype(np.float64)
    function = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil, "": np.trunc}[rounding]
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if is_signed else (0, MASKS[width])
    rounded = function(numbers)
    of_nan = 1 << 63 if width == 64 else 0  # measured on Hopper, from f32
    whole = [of_nan if value != value else int(min(max(value, low), high)) for value in rounded.tolist()]
    bits = [(value if value == of_nan else min(max(value, low), high)) & MASKS[width] for value in whole]
    result = np.array(bits, UNSIGNED[width])
    return resize(result if result.size != 1 else int(result[0]), width, register, is_signed)


def int_to_float(a: Value, width: int, is_signed: bool, kind: str, rounding: str = "rn") -> Value:
    """To nearest even, or toward zero (``rz``). 64-bit integers go through exact Python arithmetic."""
    bits = a if type(a) is ndarray else np.array([a & MASKS[width]], UNSIGNED[width])
    bits = bits.astype(UNSIGNED[width])
    rounded = encode_toward_zero if rounding == "rz" else encode
    if width < 64:
        numbers: Array = signed(bits, width).astype(np.float64) if is_signed else bits.astype(np.float64)
        return rounded(numbers, kind)
    whole = [signed(value, 64) if is_signed else value for value in bits.tolist()]
    if kind == "f64":
        return encode(np.array([float(value) for value in whole]), kind)
    return rounded(np.array([_sticky_float(value) for value in whole]), kind)


def _sticky_float(value: int) -> float:
    """An integer as a float64 that rounds to float32 and below as the integer does."""
    shift = max(0, abs(value).bit_length() - 52)
    size = abs(value) >> shift
    if abs(value) & ((1 << shift) - 1):
        size |= 1
    return float(size << shift) * (1 if value >= 0 else -1)


def float_to_float(a: Value, source: str, target: str, rounding: str, ftz: bool) -> Value:
    numbers = decode(a, source)
    if ftz:
        numbers = flush(numbers)
    if rounding in ("rni", "rzi", "rmi", "rpi"):
        function = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[rounding]
        return encode(function(numbers), target)
    if rounding == "rz" and BITS[target] < BITS[source]:
        return encode_toward_zero(numbers, target)
    if target == "f32" and source in ("bf16", "f64"):  # these two keep the bits of a NaN (measured on Hopper)
        bits = numbers.astype(np.float32, copy=False).view(np.uint32)
        return bits if bits.size != 1 else int(bits[0])
    return encode(numbers, target)


def to_halves(high: Value, low: Value, kind: str, rounding: str, finite: bool) -> Value:
    """``cvt{.rn,.rz}{.satfinite}.f16x2.f32`` and bf16x2; ``finite``: numbers beyond the range become the largest."""
    return join(*(_to_half(decode(value, "f32"), kind, rounding, finite) for value in (low, high)))


_LARGEST = {"f16": 65504.0, "bf16": float.fromhex("0x1.fep127")}


def _to_half(numbers: Array, kind: str, rounding: str, finite: bool) -> Value:
    if finite:
        numbers = np.clip(numbers, -_LARGEST[kind], _LARGEST[kind])
    return encode_toward_zero(numbers, kind) if rounding == "rz" else encode(numbers, kind)


def clamp_int(a: int, from_width: int, from_signed: bool, width: int, is_signed: bool, register: int) -> int:
    a &= MASKS[from_width]
    value = signed(a, from_width) if from_signed else a
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if is_signed else (0, MASKS[width])
    return min(max(value, low), high) & MASKS[register]


def f_relu(a: Value, kind: str) -> Value:
    """Negative numbers and -0 become +0; NaN stays, canonical."""
    if kind.endswith("x2"):
        low, high = halves(a)
        return join(f_relu(low, kind[:-2]), f_relu(high, kind[:-2]))
    numbers = decode(a, kind)
    return encode(np.where(numbers <= 0, 0, numbers).astype(numbers.dtype), kind)


def f_saturate(a: Value, kind: str) -> Value:
    """Clamp to [0, 1]; NaN and -0 become +0."""
    numbers = decode(a, kind)
    clamped = np.clip(np.nan_to_num(numbers, nan=0.0), 0, 1) + 0.0  # -0 + 0 is +0
    return encode(clamped.astype(numbers.dtype), kind)


def to_narrow(high: Value, low: Value, source: str, kind: str, rounding: str, relu: bool) -> Value:
    """Two numbers -> packed codes: 16 bits, or 8 bits for e2m1, the first operand in the upper half."""
    codes = []
    for value in (low, high):
        numbers = decode(value, source)
        if relu:
            numbers = np.where(numbers <= 0, 0, numbers)
        code = encode_ue8m0(numbers, rounding) if kind == "ue8m0" else encode_narrow(numbers, kind)
        codes.append(code.astype(np.uint16))
    packed = codes[0] | codes[1] << (4 if kind == "e2m1" else 8)
    return packed if packed.size != 1 else int(packed[0])


def from_narrow(a: Value, kind: str, target: str) -> Value:
    """Packed codes -> packed f16 or bf16."""
    shift, mask = (4, 15) if kind == "e2m1" else (8, 255)
    parts = []
    for bits in (a & mask, a >> shift & mask):
        codes = bits if type(bits) is ndarray else np.array([bits])
        parts.append(encode(values_of(kind).take(codes.astype(np.int64)), target))
    return join(*parts)
