"""Floating-point arithmetic on register bits: f16, bf16, f32 and f64, round to nearest even.

Values are integers or arrays of bits as in ``lanes``; a uniform value is computed as an array of one element.
A NaN result has the one pattern 7fffffff, or 7fff in 16 bits, whatever the operands' bits (measured on Hopper).
Sums, products, quotients, square roots and fma are correctly rounded; the ``.approx`` functions are computed in
float64 and rounded once, which lies inside the error that the ISA allows them.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from kernel_space.machine.values.lanes import UNSIGNED, Array, Value, lane_mask, ndarray

FLOATS: dict[str, type[np.floating[Any]]] = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
BITS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}
INFINITY = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000}
NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF}
TF32_NAN = 0x7FFFE000
SMALLEST_NORMAL = {"f16": 2.0**-14, "f32": 2.0**-126}


def decode(value: Value, kind: str) -> Array:
    """Bits -> numbers; bf16 comes as float32. A uniform value gives one element."""
    width = BITS[kind]
    bits = value if type(value) is ndarray else np.array([value], UNSIGNED[width])
    if kind == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(FLOATS[kind])


def encode(numbers: Array, kind: str) -> Value:
    """Numbers (of any float type) -> bits of ``kind``, rounded to nearest even once."""
    if kind == "bf16":
        bits: Array = round_to_bf16(numbers)
    else:
        bits = canonical(numbers.astype(FLOATS[kind], copy=False), kind)
    return bits if bits.size != 1 else int(bits[0])


def canonical(numbers: Array, kind: str) -> Array:
    """Numbers of ``kind`` -> bits, every NaN as its canonical pattern; f64 keeps its NaN."""
    bits = numbers.view(UNSIGNED[BITS[kind]])
    if kind in NAN:
        nan = numbers != numbers
        if np.count_nonzero(nan):
            return np.where(nan, UNSIGNED[BITS[kind]](NAN[kind]), bits)
    return bits


def one_nan(a: Value, kind: str) -> Value:
    """Bits with every NaN as the canonical pattern."""
    if kind not in NAN:
        return a
    size, limit = (1 << (BITS[kind] - 1)) - 1, INFINITY[kind]
    if type(a) is not ndarray:
        return NAN[kind] if a & size > limit else a
    nan = a & size > limit
    return np.where(nan, a.dtype.type(NAN[kind]), a) if np.count_nonzero(nan) else a


def f_neg(a: Value, kind: str, ftz: bool) -> Value:
    """The sign flipped; NaN canonical."""
    sign = 1 << (BITS[kind] - 1)
    return one_nan((flush_bits(a, kind) if ftz else a) ^ sign, kind)


def f_abs(a: Value, kind: str, ftz: bool) -> Value:
    sign = 1 << (BITS[kind] - 1)
    return one_nan((flush_bits(a, kind) if ftz else a) & (sign - 1), kind)


def flush_bits(a: Value, kind: str) -> Value:
    return encode(flush(decode(a, kind), kind), kind)


def round_to_bf16(numbers: Array) -> Array:
    """float32 or float64 -> bf16 bits, to nearest even."""
    if numbers.dtype == np.float64:
        numbers = round_to_odd_f32(numbers)
    bits = np.ascontiguousarray(numbers, dtype=np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
    return np.where(np.isnan(numbers), np.uint32(0x7FFF), rounded).astype(np.uint16)


def round_to_odd_f32(numbers: Array) -> Array:
    """float64 -> float32 by truncation with a sticky last bit: a later rounding to fewer bits is then exact."""
    near = numbers.astype(np.float32)
    back = near.astype(np.float64)
    bits = near.view(np.int32).copy()
    too_far = np.abs(back) > np.abs(numbers)
    bits[too_far] -= 1
    inexact = (back != numbers) & np.isfinite(numbers)
    bits[inexact] |= 1
    return bits.view(np.float32)


def flush(numbers: Array, kind: str = "f32") -> Array:
    """``.ftz``: numbers below the normal range of ``kind``, rounded or not, become zeros of their sign."""
    tiny = np.abs(numbers) < SMALLEST_NORMAL[kind]
    return np.where(tiny, np.copysign(numbers.dtype.type(0), numbers), numbers) if tiny.any() else numbers


def binary(
    function: Callable[[Array, Array], Array], a: Value, b: Value, kind: str, ftz: bool = False
) -> Value:
    """A two-operand operation; for 16-bit kinds it is computed in float32, which rounds right for ``+ - *``.

    With ``ftz`` it is computed in float64: results are flushed before they are rounded (measured on Hopper).
    """
    x, y = decode(a, kind), decode(b, kind)
    if ftz:
        x, y = flush(x, kind).astype(np.float64), flush(y, kind).astype(np.float64)
    elif kind == "f16":
        x, y = x.astype(np.float32), y.astype(np.float32)
    result = function(x, y)
    return encode(flush(result, kind) if ftz else result, kind)


def unary(function: Callable[[Array], Array], a: Value, kind: str, ftz: bool = False) -> Value:
    """A one-operand function computed in float64 and rounded to ``kind``."""
    x = decode(a, kind)
    if ftz:
        x = flush(x, kind)
    result = function(x.astype(np.float64))
    return encode(flush(result, kind) if ftz else result, kind)


def fma(a: Value, b: Value, c: Value, kind: str, ftz: bool = False) -> Value:
    """``a * b + c`` with one rounding."""
    if kind == "f32" and not ftz:
        return _fma_f32(a, b, c)
    x, y, z = decode(a, kind), decode(b, kind), decode(c, kind)
    if kind == "f64":
        return _fma_f64(x, y, z)
    if ftz:
        x, y, z = flush(x, kind), flush(y, kind), flush(z, kind)
    product = x.astype(np.float64) * y
    total = product + z
    if kind != "f32" or ftz or (total.view(np.uint64) & 0x1FFFFFFF == 0x10000000).any():
        total = sticky(product, z.astype(np.float64), total)
    return encode(flush(total, kind) if ftz else total, kind)


def toward_zero(how: str, kind: str, ftz: bool, *args: Value) -> Value:
    """``add sub mul fma`` of f32 with ``.rz``, by the exact result or one with a sticky last bit."""
    numbers = [decode(arg, kind) for arg in args]
    x, y, *rest = (flush(part).astype(np.float64) if ftz else part.astype(np.float64) for part in numbers)
    if how == "mul":
        exact = x * y
    else:
        product, addend = (x * y, rest[0]) if how == "fma" else (x, -y if how == "sub" else y)
        product, addend = np.broadcast_arrays(product, addend)
        exact = sticky(product, addend, product + addend)
    return encode_toward_zero(flush(exact) if ftz else exact, kind)


def encode_toward_zero(numbers: Array, kind: str) -> Value:
    """Numbers -> bits of ``kind``, truncated."""
    near = encode(numbers, kind)
    bits = near if type(near) is ndarray else np.array([near], UNSIGNED[BITS[kind]])
    back = decode(bits, kind).astype(np.float64)
    bits = bits - (np.abs(back) > np.abs(numbers.astype(np.float64))).astype(bits.dtype)
    return bits if bits.size != 1 else int(bits[0])


def to_tf32(a: Value, rounding: str, relu: bool) -> Value:
    """f32 bits with 10 bits of mantissa: to nearest even (``rn``), ties away from zero (``rna``), truncated (``rz``).

    NaN becomes 7fffe000; ``rna`` only clears its low bits, which may leave infinity (measured on Hopper).
    """
    bits = a if type(a) is ndarray else np.array([a], np.uint32)
    added: dict[str, Array | np.uint32] = {
        "rn": 0xFFF + (bits >> 13 & 1), "rna": np.uint32(0x1000), "rz": np.uint32(0),
    }  # fmt: skip
    size = bits & 0x7FFFFFFF
    result = np.where(size < INFINITY["f32"], (bits + added[rounding]) & 0xFFFFE000, bits & 0xFFFFE000)
    if relu:
        result = np.where(bits >> 31 == 1, 0, result)
    if rounding != "rna":
        result = np.where(size > INFINITY["f32"], TF32_NAN, result)
    result = result.astype(np.uint32)
    return result if result.size != 1 else int(result[0])


def _fma_f32(a: Value, b: Value, c: Value) -> Value:
    """The common case of ``fma``, without detours: the exact product is a float64."""
    x, y, z = (_uniform_f32(bits) if isinstance(bits, int) else bits.view(np.float32) for bits in (a, b, c))
    product = np.multiply(x, y, dtype=np.float64)
    total = product + z
    if type(total) is not ndarray:
        total, product = np.array([total]), np.array([product])
    # Low bits of exactly a half: halfway between two float32, or looking so because the sum was rounded.
    if np.count_nonzero(total.view(np.uint64) & 0x1FFFFFFF == 0x10000000):
        total = sticky(*np.broadcast_arrays(product, np.asarray(z, np.float64), total))
    return encode(total, "f32")


@functools.lru_cache(maxsize=1 << 16)
def _uniform_f32(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def sticky(product: Array, addend: Array, total: Array) -> Array:
    """Round-to-odd of ``product + addend``: a float64 that rounds to fewer bits as the exact sum does."""
    part = total - product
    error = (product - (total - part)) + (addend - part)
    bits = total.view(np.int64).copy()
    inexact = np.isfinite(total) & (error != 0)
    even = inexact & (bits & 1 == 0)
    away = (error > 0) == (total > 0)
    bits[even & away] += 1
    bits[even & ~away] -= 1
    return bits.view(np.float64)


def _fma_f64(x: Array, y: Array, z: Array) -> Value:
    from fractions import Fraction

    def one(a: float, b: float, c: float) -> float:
        if not all(np.isfinite([a, b, c])):
            return a * b + c
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        return float(exact) if exact else a * b + c

    size = max(x.size, y.size, z.size)
    rows = [np.broadcast_to(v, size).tolist() for v in (x, y, z)]
    return encode(np.array([one(*row) for row in zip(*rows, strict=True)]), "f64")


def minimum(a: Array, b: Array) -> Array:
    """The number when one is NaN; -0 counts as less than +0."""
    result = np.fmin(a, b)
    zeros = (a == 0) & (b == 0)
    return np.where(zeros & (np.signbit(a) | np.signbit(b)), np.copysign(a * 0, -1), result)


def maximum(a: Array, b: Array) -> Array:
    return -minimum(-a, -b)


def minimum_nan(a: Array, b: Array) -> Array:
    return np.where(np.isnan(a) | np.isnan(b), np.nan, minimum(a, b)).astype(a.dtype)


def maximum_nan(a: Array, b: Array) -> Array:
    return np.where(np.isnan(a) | np.isnan(b), np.nan, maximum(a, b)).astype(a.dtype)


_ORDERED: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": lambda a, b: (a != b) & ~(np.isnan(a) | np.isnan(b)),
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}
COMPARISONS = frozenset({*_ORDERED, "equ", "neu", "ltu", "leu", "gtu", "geu"})


def compare(a: Value, b: Value, how: str, kind: str) -> int:
    """Lane mask of the comparison; the forms ending in u are true for NaN."""
    x, y = decode(a, kind), decode(b, kind)
    if how in _ORDERED:
        flags = _ORDERED[how](x, y)
    else:
        flags = _ORDERED[how[:-1]](x, y) | np.isnan(x) | np.isnan(y)
    return lane_mask(flags if flags.size != 1 else bool(flags[0]))


def has_property(a: Value, kind: str, what: str) -> int:
    """``testp``: lane mask of the numbers that have the property."""
    x = decode(a, kind)
    size, smallest = np.abs(x), np.finfo(x.dtype).smallest_normal
    flags = {
        "finite": np.isfinite(x),
        "infinite": np.isinf(x),
        "number": ~np.isnan(x),
        "notanumber": np.isnan(x),
        "normal": np.isfinite(x) & (size >= smallest),
        "subnormal": (size > 0) & (size < smallest),
    }[what]
    return lane_mask(flags if flags.size != 1 else bool(flags[0]))


def halves(a: Value) -> tuple[Value, Value]:
    """A packed pair of 16-bit values -> (low, high)."""
    if type(a) is ndarray:
        return (a & 0xFFFF).astype(np.uint16), (a >> 16).astype(np.uint16)
    return a & 0xFFFF, a >> 16


def join(low: Value, high: Value) -> Value:
    """(low, high) 16-bit values -> packed 32 bits."""
    if type(low) is not ndarray and type(high) is not ndarray:
        return low | high << 16
    low32 = low.astype(np.uint32) if type(low) is ndarray else low
    high32 = high.astype(np.uint32) if type(high) is ndarray else high
    return low32 | high32 << 16


def packed(function: Callable[..., Value], *args: Value) -> Value:
    """A 16-bit operation on both halves of packed operands."""
    pairs = [halves(arg) for arg in args]
    return join(function(*(low for low, _ in pairs)), function(*(high for _, high in pairs)))


def cvt_f16x2(high: Value, low: Value) -> Value:
    """``cvt.rn.f16x2.f32 d, a, b``: a goes to the upper half."""
    if type(high) is ndarray and type(low) is ndarray:
        both = np.empty((32, 2), np.float16)
        both[:, 0] = low.view(np.float32)
        both[:, 1] = high.view(np.float32)
        return canonical(both, "f16").view(np.uint32).reshape(32)
    return join(encode(decode(low, "f32"), "f16"), encode(decode(high, "f32"), "f16"))


def cvt_bf16x2(high: Value, low: Value) -> Value:
    return join(encode(decode(low, "f32"), "bf16"), encode(decode(high, "f32"), "bf16"))
