"""Arithmetic that mixes 16-bit operands with f32, and saturating conversions, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from tests.machine.ptx import f16, f32, lanes_of

CASES = [
    ("add.f32.f16 {d}, {a}, {b};", "rhrr", (f16(1.5), f32(2**-20)), f32(1.5 + 2**-20)),
    ("add.rn.f32.bf16 {d}, {a}, {b};", "rhrr", (0x3FC0, f32(-0.5)), f32(1.0)),
    ("sub.f32.f16 {d}, {a}, {b};", "rhrr", (f16(1), f32(3)), f32(-2)),
    ("fma.rn.f32.bf16 {d}, {a}, {b}, {c};", "rhhr", (0x3F81, 0x3F81, f32(-1)), f32(2**-6 + 2**-14)),
    ("fma.rn.f32.f16 {d}, {a}, {b}, {c};", "rhhr", (f16(3), f16(-2), f32(0.5)), f32(-5.5)),
    ("cvt.rn.satfinite.bf16x2.f32 {d}, {a}, {b};", "rrrr", (f32(math.inf), f32(-3.4e38)), 0x7F7FFF7F),
    ("cvt.rn.satfinite.f16x2.f32 {d}, {a}, {b};", "rrrr", (f32(1e6), f32(-2)), 0x7BFFC000),
    ("cvt.rn.satfinite.f16x2.f32 {d}, {a}, {b};", "rrrr", (f32(65519.0), f32(65520.0)), 0x7BFF7BFF),
    ("cvt.rz.bf16x2.f32 {d}, {a}, {b};", "rrrr", (0x3F80FFFF, 0xBF80FFFF), 0x3F80BF80),
    ("cvt.rz.f16x2.f32 {d}, {a}, {b};", "rrrr", (f32(1.9999), f32(1.0)), 0x3FFF3C00),
]


@pytest.mark.parametrize("uniform", [True, False], ids=["uniform", "per_lane"])
@pytest.mark.parametrize(("text", "kinds", "operands", "expected"), CASES)
def test_mixed(text: str, kinds: str, operands: tuple[int, ...], expected: int, uniform: bool) -> None:
    assert lanes_of(text, *operands, uniform=uniform, kinds=kinds) == [expected] * 32
