"""Values of a warp register: an ``int`` when all lanes agree, else an unsigned numpy array of 32 lanes.

Integers are kept unsigned, modulo the register width. Predicates are 32-bit lane masks. The functions here take
either form; the translator calls them where uniformity is not known and writes plain integer arithmetic where it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

FULL = 0xFFFFFFFF
LANES = 32
Array = NDArray[Any]
Value = int | Array
ndarray = np.ndarray
UNSIGNED: dict[int, type[np.unsignedinteger[Any]]] = {
    8: np.uint8,
    16: np.uint16,
    32: np.uint32,
    64: np.uint64,
}
SIGNED: dict[int, type[np.signedinteger[Any]]] = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
MASKS = {8: 0xFF, 16: 0xFFFF, 32: FULL, 64: (1 << 64) - 1}


@functools.lru_cache(maxsize=4096)
def lane_flags(mask: int) -> NDArray[np.bool_]:
    """Lane mask -> read-only array of 32 flags."""
    flags = (mask >> np.arange(LANES, dtype=np.uint64)) & 1 == 1
    flags.setflags(write=False)
    return flags


@functools.lru_cache(maxsize=4096)
def lane_list(mask: int) -> tuple[int, ...]:
    return tuple(lane for lane in range(LANES) if mask >> lane & 1)


def lane_mask(condition: bool | Array) -> int:
    """Flags -> lane mask; one bool stands for all lanes."""
    if type(condition) is ndarray:
        return int.from_bytes(np.packbits(condition, bitorder="little").tobytes(), "little")
    return FULL if condition else 0


def spread(value: Value, width: int) -> Array:
    """The 32 lanes of a value as an array."""
    if type(value) is ndarray:
        return value
    return np.full(LANES, value, UNSIGNED[width])


def blend(new: Value, old: Value, mask: int, width: int) -> Value:
    """``new`` in the lanes of ``mask``, ``old`` elsewhere."""
    if mask == FULL:
        return new
    if type(new) is int and type(old) is int and new == old:
        return new
    return np.where(lane_flags(mask), spread(new, width), spread(old, width))


def first_lane(value: Value, mask: int) -> int:
    """The value in the lowest lane of ``mask``."""
    if isinstance(value, int):
        return value
    return int(value[(mask & -mask).bit_length() - 1])


def select(a: Value, b: Value, predicate: int, mask: int, width: int) -> Value:
    """``predicate ? a : b`` per lane; lanes outside of ``mask`` do not matter."""
    chosen = predicate & mask
    if chosen == mask:
        return a
    if chosen == 0:
        return b
    return np.where(lane_flags(predicate), spread(a, width), spread(b, width))


def add(a: Value, b: Value, m: int) -> Value:
    r: Value = a + b
    return r if type(r) is ndarray else r & m


def sub(a: Value, b: Value, m: int) -> Value:
    r: Value = a - b
    return r if type(r) is ndarray else r & m


def mul_lo(a: Value, b: Value, m: int) -> Value:
    r: Value = a * b
    return r if type(r) is ndarray else r & m


@overload
def signed(a: int, width: int) -> int: ...
@overload
def signed(a: Array, width: int) -> Array: ...
def signed(a: Value, width: int) -> Value:
    """Two's complement reading."""
    if type(a) is ndarray:
        return a.view(SIGNED[width])
    sign = 1 << (width - 1)
    return (a ^ sign) - sign


def unsigned(a: Value, width: int) -> Value:
    if type(a) is ndarray:
        return a.astype(SIGNED[width], copy=False).view(UNSIGNED[width])
    return a & MASKS[width]


def wide(a: Value, width: int, is_signed: bool) -> Value:
    """The value in a 64-bit type wide enough for sums and differences; arrays become int64 or uint64."""
    if type(a) is not ndarray:
        return signed(a, width) if is_signed else a
    return a.view(SIGNED[width]).astype(np.int64) if is_signed else a.astype(np.uint64)


def mul_wide(a: Value, b: Value, width: int, is_signed: bool) -> Value:
    """Full product of two values of ``width`` <= 32 bits, in twice the width."""
    product: Value = wide(a, width, is_signed) * wide(b, width, is_signed)
    if type(product) is not ndarray:
        return product & MASKS[2 * width]
    return product.view(np.uint64).astype(UNSIGNED[2 * width], copy=False)


def mul_hi(a: Value, b: Value, width: int, is_signed: bool) -> Value:
    if width == 64:
        return per_lane(lambda x, y: scalar_mul_hi(x, y, 64, is_signed), 64, a, b)
    product: Value = wide(a, width, is_signed) * wide(b, width, is_signed)
    if type(product) is not ndarray:
        return (product >> width) & MASKS[width]
    return (product >> width).astype(UNSIGNED[width])


def scalar_mul_hi(a: int, b: int, width: int, is_signed: bool) -> int:
    if is_signed:
        a, b = signed(a, width), signed(b, width)
    return (a * b >> width) & MASKS[width]


def shift_left(a: Value, b: Value, width: int) -> Value:
    """Amounts at or beyond the width give 0."""
    if type(a) is not ndarray and type(b) is not ndarray:
        return (a << b) & MASKS[width] if b < width else 0
    if type(b) is not ndarray:
        return a << b if b < width else np.zeros_like(a)
    a = spread(a, width)
    amount = b.astype(a.dtype)
    return np.where(b < width, a << (amount & (width - 1)), a.dtype.type(0))


def shift_right(a: Value, b: Value, width: int, is_signed: bool) -> Value:
    """Amounts are clamped; arithmetic when signed."""
    if type(b) is not ndarray:
        amount = min(b, width - 1)
        if type(a) is not ndarray:
            return (signed(a, width) >> amount) & MASKS[width] if is_signed else (a >> b if b < width else 0)
        if is_signed:
            return (a.view(SIGNED[width]) >> amount).view(UNSIGNED[width])
        return a >> b if b < width else np.zeros_like(a)
    a = spread(a, width)
    amounts = np.minimum(b, width - 1).astype(a.dtype)
    if is_signed:
        return (a.view(SIGNED[width]) >> amounts.view(SIGNED[width])).view(UNSIGNED[width])
    return np.where(b < width, a >> amounts, a.dtype.type(0))


def lesser(a: Value, b: Value, width: int, is_signed: bool) -> Value:
    if type(a) is ndarray or type(b) is ndarray:
        a, b = spread(a, width), spread(b, width)
        if is_signed:
            return np.minimum(a.view(SIGNED[width]), b.view(SIGNED[width])).view(UNSIGNED[width])
        return np.minimum(a, b)
    return a if wide(a, width, is_signed) < wide(b, width, is_signed) else b


def greater(a: Value, b: Value, width: int, is_signed: bool) -> Value:
    return sub(add(a, b, MASKS[width]), lesser(a, b, width, is_signed), MASKS[width])


def per_lane(function: Callable[..., int], width: int, *args: Value) -> Value:
    """A scalar function on every lane: the plain way for instructions that are rare."""
    if not any(type(arg) is ndarray for arg in args):
        return function(*args)
    columns = [arg.tolist() if type(arg) is ndarray else [arg] * LANES for arg in args]
    return np.array([function(*row) for row in zip(*columns, strict=True)], dtype=UNSIGNED[width])


def resize(a: Value, source: int, target: int, is_signed: bool) -> Value:
    """Integer conversion: sign or zero extension, or truncation, of bit widths."""
    if type(a) is not ndarray:
        a &= MASKS[source]
        return (signed(a, source) if is_signed else a) & MASKS[target]
    a = a.astype(UNSIGNED[source], copy=False)
    if is_signed:
        return a.view(SIGNED[source]).astype(SIGNED[target]).view(UNSIGNED[target])
    return a.astype(UNSIGNED[target])


def pack(lo: Value, hi: Value, width: int) -> Value:
    """``mov.b2w {lo, hi}`` of two values of ``width`` bits."""
    if type(lo) is not ndarray and type(hi) is not ndarray:
        return lo | hi << width
    dtype = UNSIGNED[2 * width]
    low = lo.astype(dtype) if type(lo) is ndarray else lo
    high = hi.astype(dtype) if type(hi) is ndarray else hi
    return low | high << width


def low_half(value: Value, width: int) -> Value:
    if type(value) is not ndarray:
        return value & MASKS[width]
    return value.astype(UNSIGNED[width])


def high_half(value: Value, width: int) -> Value:
    if type(value) is not ndarray:
        return value >> width
    return (value >> width).astype(UNSIGNED[width])
