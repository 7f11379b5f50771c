"""``.rm .rp .rz`` of f32 sums, products and fma, by hand: 2^-24 is half an ulp of 1, far less must still count."""

from __future__ import annotations

import pytest

from tests.machine.ptx import f32, lanes_of

TINY = 2.0**-100
UP, DOWN = 0x3F800001, 0x3F7FFFFF  # neighbours of 1.0
CASES = [
    ("add.rm.f32 {d}, {a}, {b};", (1.0, TINY), f32(1)),
    ("add.rp.f32 {d}, {a}, {b};", (1.0, TINY), UP),
    ("add.rm.f32 {d}, {a}, {b};", (1.0, -TINY), DOWN),
    ("add.rz.f32 {d}, {a}, {b};", (-1.0, TINY), DOWN | 0x80000000),
    ("add.rp.f32 {d}, {a}, {b};", (-1.0, -TINY), f32(-1)),
    ("sub.rm.f32 {d}, {a}, {b};", (1.0, TINY), DOWN),
    ("add.rm.f32 {d}, {a}, {b};", (2.5, -2.5), f32(-0.0)),
    ("add.rp.f32 {d}, {a}, {b};", (2.5, -2.5), f32(0.0)),
    ("mul.rp.f32 {d}, {a}, {b};", (1 + 2**-23, 1 + 2**-23), 0x3F800003),
    ("mul.rz.f32 {d}, {a}, {b};", (1 + 2**-23, -1 - 2**-23), 0x3F800002 | 0x80000000),
]


@pytest.mark.parametrize("uniform", [True, False], ids=["uniform", "per_lane"])
@pytest.mark.parametrize(("text", "operands", "expected"), CASES)
def test_rounding(text: str, operands: tuple[float, float], expected: int, uniform: bool) -> None:
    assert lanes_of(text, *map(f32, operands), uniform=uniform) == [expected] * 32


def test_fma_and_pairs() -> None:
    text = "fma.rm.f32 {d}, {a}, {b}, {c};"
    assert lanes_of(text, f32(1), f32(1), f32(-TINY), uniform=False) == [DOWN] * 32
    pair = "add.rm.f32x2 {d}, {a}, {b};"
    found = lanes_of(pair, f32(1) | f32(1) << 32, f32(TINY) | f32(-TINY) << 32, uniform=False, kinds="dddd")
    assert found == [f32(1) | DOWN << 32] * 32
