"""Narrow number formats as tables: code -> value, and value -> code with rounding to nearest even.

E2M1, E4M3 (no infinity), E5M2, E2M3, E3M2, UE4M3, UE8M0. OCP MX and PTX ISA 5.2.3 "Alternate Floating-Point".
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True)
class Format:
    """``bits`` = 1 + exponent + mantissa. ``infinity``: the top exponent is infinity and NaN as in IEEE;
    ``nan``: only the code of all ones is NaN."""

    name: str
    exponent: int
    mantissa: int
    bias: int
    infinity: bool = False
    nan: bool = False

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa


FORMATS = {
    item.name: item
    for item in (
        Format("e2m1", 2, 1, 1),
        Format("e2m3", 2, 3, 1),
        Format("e3m2", 3, 2, 3),
        Format("e4m3", 4, 3, 7, nan=True),
        Format("e5m2", 5, 2, 15, infinity=True),
    )
}


@functools.cache
def values_of(name: str) -> NDArray[np.float32]:
    """The value of every code, indexed by code; float32, exact."""
    if name == "ue8m0":
        exponents = np.arange(256, dtype=np.float64) - 127
        values = np.exp2(exponents)
        values[255] = np.nan
        return values.astype(np.float32)
    if name == "ue4m3":
        return np.concatenate([values_of("e4m3")[:128]] * 2)  # the sign bit is not looked at
    form = FORMATS[name]
    return np.array([_value(form, code) for code in range(1 << form.bits)], np.float32)


def _value(form: Format, code: int) -> float:
    sign = -1.0 if code >> (form.bits - 1) else 1.0
    exponent = code >> form.mantissa & ((1 << form.exponent) - 1)
    fraction = code & ((1 << form.mantissa) - 1)
    top = (1 << form.exponent) - 1
    if form.infinity and exponent == top:
        return sign * np.inf if fraction == 0 else np.nan
    if form.nan and exponent == top and fraction == (1 << form.mantissa) - 1:
        return np.nan
    if exponent == 0:
        return sign * fraction * 2.0 ** (1 - form.bias - form.mantissa)
    return sign * (1 + fraction / (1 << form.mantissa)) * 2.0 ** (exponent - form.bias)


@functools.cache
def _finite(name: str) -> NDArray[np.float64]:
    """Non-negative finite values in rising order; their index is the code."""
    values = values_of(name)[: 1 << (FORMATS[name].bits - 1)].astype(np.float64)
    return values[np.isfinite(values)]


def encode_narrow(numbers: NDArray[np.floating], name: str) -> NDArray[np.uint8]:
    """Nearest code, ties to the even code, beyond the largest finite value saturating. NaN becomes the format's NaN,
    or the largest value where it has none."""
    form, grid = FORMATS[name], _finite(name)
    sizes = np.abs(numbers.astype(np.float64))
    high = np.clip(np.searchsorted(grid, sizes), 0, len(grid) - 1)
    low = np.maximum(high - 1, 0)
    middle = (grid[low] + grid[high]) / 2
    codes = np.where((sizes > middle) | ((sizes == middle) & (high % 2 == 0)), high, low)
    codes = np.where(sizes >= grid[-1], len(grid) - 1, codes)
    if form.nan or form.infinity:
        codes = np.where(np.isnan(numbers), (1 << (form.bits - 1)) - 1, codes)
    else:
        codes = np.where(np.isnan(numbers), len(grid) - 1, codes)
    sign = np.signbit(numbers) & ~np.isnan(numbers)
    return (codes + (sign.astype(np.int64) << (form.bits - 1))).astype(np.uint8)


def encode_ue8m0(numbers: NDArray[np.floating], rounding: str) -> NDArray[np.uint8]:
    """Power-of-two scale, toward zero or up (``rp``), saturating; NaN and negative numbers give 255."""
    sizes = np.abs(numbers.astype(np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        exponents = np.ceil(np.log2(sizes)) if rounding == "rp" else np.floor(np.log2(sizes))
    codes = np.clip(np.nan_to_num(exponents, neginf=-127, posinf=127) + 127, 0, 254)
    return np.where(np.isnan(numbers), 255, codes).astype(np.uint8)


@functools.cache
def byte_pairs(name: str) -> NDArray[np.complex64]:
    """4-bit format: byte -> two float32 values (low nibble first) in the 8 bytes of one complex64."""
    values = values_of(name)
    codes = np.arange(256)
    pairs = np.stack([values[codes & 15], values[codes >> 4]], axis=1)
    return np.ascontiguousarray(pairs).view(np.complex64).reshape(256)
