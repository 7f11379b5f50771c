"""f32 sums, products and fma rounded down, up or toward zero (``.rm .rp .rz``).

The exact result is held as a float64 rounded to odd, from which every rounding to float32 comes out right.
"""

from __future__ import annotations

import numpy as np

from kernel_space.machine.values.floats import decode, encode, sticky
from kernel_space.machine.values.lanes import Array, Value

_ONE = np.float64(1)


def directed(name: str, rounding: str, *args: Value) -> Value:
    """``name``: add, sub, mul or fma of f32 bits."""
    x, y, *rest = (decode(value, "f32").astype(np.float64) for value in args)
    factor: Array | np.float64 = y
    if name in ("add", "sub"):
        factor, rest = _ONE, [y if name == "add" else -y]
    product = x * factor  # exact: 48 bits
    if not rest:
        return encode(_round(product, rounding), "f32")
    total = product + rest[0]
    total = sticky(product, np.broadcast_to(rest[0], total.shape), total)
    if rounding == "rm":  # an exact zero of two different signs is -0 when rounding down
        total = np.where((total == 0) & (np.signbit(product) != np.signbit(rest[0])), -0.0, total)
    return encode(_round(total, rounding), "f32")


def _round(exact: Array, rounding: str) -> Array:
    near = exact.astype(np.float32)
    back = near.astype(np.float64)
    down, up = np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))
    if rounding == "rz":
        return np.where(np.abs(back) > np.abs(exact), np.where(exact > 0, down, up), near)
    if rounding == "rm":
        return np.where(back > exact, down, near)
    return np.where(back < exact, up, near)
