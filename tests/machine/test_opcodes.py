"""Integer, bit and float instructions against results worked out by hand from the PTX ISA."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.machine.ptx import f16, f32, lanes_of

M32 = 0xFFFFFFFF
MIN32 = 0x80000000

INTEGER = [
    ("add.s32 {d}, {a}, {b};", "rrrr", (5, -7 & M32), 0xFFFFFFFE),
    ("add.u32 {d}, {a}, {b};", "rrrr", (M32, 1), 0),
    ("add.sat.s32 {d}, {a}, {b};", "rrrr", (0x7FFFFFFF, 1), 0x7FFFFFFF),
    ("sub.sat.s32 {d}, {a}, {b};", "rrrr", (MIN32, 1), MIN32),
    ("add.u64 {d}, {a}, {b};", "dddd", (2**64 - 1, 3), 2),
    ("add.u16 {d}, {a}, {b};", "hhhh", (0xFFFF, 2), 1),
    ("sub.s32 {d}, {a}, {b};", "rrrr", (3, 5), 0xFFFFFFFE),
    ("sub.u64 {d}, {a}, {b};", "dddd", (0, 1), 2**64 - 1),
    ("mul.lo.s32 {d}, {a}, {b};", "rrrr", (0x10001, 0x10001), 0x20001),
    ("mul.hi.u32 {d}, {a}, {b};", "rrrr", (M32, M32), 0xFFFFFFFE),
    ("mul.hi.s32 {d}, {a}, {b};", "rrrr", (M32, M32), 0),
    ("mul.hi.s32 {d}, {a}, {b};", "rrrr", (MIN32, 2), M32),
    ("mul.hi.u64 {d}, {a}, {b};", "dddd", (2**63, 6), 3),
    ("mul.wide.u32 {d}, {a}, {b};", "drrr", (M32, 2), 0x1FFFFFFFE),
    ("mul.wide.s32 {d}, {a}, {b};", "drrr", (M32, 2), 2**64 - 2),
    ("mul.wide.u16 {d}, {a}, {b};", "rhhh", (0xFFFF, 0xFFFF), 0xFFFE0001),
    ("mad.lo.s32 {d}, {a}, {b}, {c};", "rrrr", (7, 6, 5), 47),
    ("mad.hi.u32 {d}, {a}, {b}, {c};", "rrrr", (MIN32, 4, 9), 11),
    ("mad.wide.u32 {d}, {a}, {b}, {c};", "drrd", (M32, M32, 1), 0xFFFFFFFE00000002),
    ("mul24.lo.u32 {d}, {a}, {b};", "rrrr", (0xFF000002, 3), 6),
    ("div.u32 {d}, {a}, {b};", "rrrr", (100, 7), 14),
    ("div.s32 {d}, {a}, {b};", "rrrr", (-100 & M32, 7), -14 & M32),
    ("rem.u32 {d}, {a}, {b};", "rrrr", (100, 7), 2),
    ("rem.s32 {d}, {a}, {b};", "rrrr", (-100 & M32, 7), -2 & M32),
    ("abs.s32 {d}, {a};", "rrrr", (-9 & M32,), 9),
    ("neg.s32 {d}, {a};", "rrrr", (9,), -9 & M32),
    ("min.s32 {d}, {a}, {b};", "rrrr", (M32, 1), M32),
    ("min.u32 {d}, {a}, {b};", "rrrr", (M32, 1), 1),
    ("max.s32 {d}, {a}, {b};", "rrrr", (M32, 1), 1),
    ("max.u64 {d}, {a}, {b};", "dddd", (2**63, 1), 2**63),
    ("min.s16x2 {d}, {a}, {b};", "rrrr", (0x0001FFFF, 0x00020001), 0x0001FFFF),
    ("max.relu.s32 {d}, {a}, {b};", "rrrr", (-3 & M32, -5 & M32), 0),
    ("sad.u32 {d}, {a}, {b}, {c};", "rrrr", (3, 10, 100), 107),
    ("and.b32 {d}, {a}, {b};", "rrrr", (0xF0F0, 0xFF00), 0xF000),
    ("or.b32 {d}, {a}, {b};", "rrrr", (0xF0F0, 0x0F00), 0xFFF0),
    ("xor.b64 {d}, {a}, {b};", "dddd", (2**40 + 1, 1), 2**40),
    ("not.b32 {d}, {a};", "rrrr", (1,), 0xFFFFFFFE),
    ("cnot.b32 {d}, {a};", "rrrr", (0,), 1),
    ("shl.b32 {d}, {a}, {b};", "rrrr", (1, 31), MIN32),
    ("shl.b32 {d}, {a}, {b};", "rrrr", (1, 32), 0),
    ("shl.b64 {d}, {a}, {b};", "ddrr", (3, 62), 3 << 62 & (2**64 - 1)),
    ("shr.u32 {d}, {a}, {b};", "rrrr", (MIN32, 31), 1),
    ("shr.u32 {d}, {a}, {b};", "rrrr", (MIN32, 40), 0),
    ("shr.s32 {d}, {a}, {b};", "rrrr", (MIN32, 4), 0xF8000000),
    ("shr.s32 {d}, {a}, {b};", "rrrr", (MIN32, 99), M32),
    ("shr.s32 {d}, {a}, 3;", "rrrr", (-16 & M32,), -2 & M32),
    ("shf.l.wrap.b32 {d}, {a}, {b}, {c};", "rrrr", (0x80000000, 1, 1), 3),
    ("shf.r.clamp.b32 {d}, {a}, {b}, {c};", "rrrr", (5, 7, 40), 7),
    ("shf.r.wrap.b32 {d}, {a}, {b}, {c};", "rrrr", (0x10, 1, 4), 0x10000001),
    ("prmt.b32 {d}, {a}, {b}, {c};", "rrrr", (0x03020100, 0x07060504, 0x5410), 0x05040100),
    ("prmt.b32 {d}, {a}, {b}, {c};", "rrrr", (0x000080FF, 0, 0x9998), 0xFFFFFFFF),
    ("prmt.b32.f4e {d}, {a}, {b}, {c};", "rrrr", (0x03020100, 0x07060504, 1), 0x04030201),
    ("prmt.b32.rc16 {d}, {a}, {b}, {c};", "rrrr", (0x03020100, 0, 1), 0x03020302),
    ("lop3.b32 {d}, {a}, {b}, {c}, 0x96;", "rrrr", (0b1100, 0b1010, 0b0001), 0b0111),
    ("lop3.b32 {d}, {a}, {b}, {c}, 0xE8;", "rrrr", (0b1100, 0b1010, 0b0110), 0b1110),
    ("bfe.u32 {d}, {a}, {b}, {c};", "rrrr", (0x12345678, 8, 8), 0x56),
    ("bfe.s32 {d}, {a}, {b}, {c};", "rrrr", (0x0000F000, 8, 8), -16 & M32),
    ("bfi.b32 {d}, {a}, {b}, 8, 4;", "rrrr", (0xA, 0xFFFFFFFF), 0xFFFFFAFF),
    ("bfind.u32 {d}, {a};", "rrrr", (0x00010000,), 16),
    ("bfind.u32 {d}, {a};", "rrrr", (0,), M32),
    ("bfind.shiftamt.u32 {d}, {a};", "rrrr", (0x00010000,), 15),
    ("bfind.s32 {d}, {a};", "rrrr", (-2 & M32,), 0),
    ("brev.b32 {d}, {a};", "rrrr", (0x1,), MIN32),
    ("clz.b32 {d}, {a};", "rrrr", (1,), 31),
    ("clz.b32 {d}, {a};", "rrrr", (0,), 32),
    ("clz.b64 {d}, {a};", "rddd", (1,), 63),
    ("popc.b32 {d}, {a};", "rrrr", (0xFF01,), 9),
    ("fns.b32 {d}, {a}, 0, 2;", "rrrr", (0b1010100,), 4),
    ("bmsk.clamp.b32 {d}, {a}, {b};", "rrrr", (4, 8), 0xFF0),
    ("dp4a.u32.u32 {d}, {a}, {b}, {c};", "rrrr", (0x01020304, 0x01010101, 5), 15),
    ("dp4a.s32.s32 {d}, {a}, {b}, {c};", "rrrr", (0x000000FF, 0x00000002, 0), -2 & M32),
    ("dp2a.lo.u32.u32 {d}, {a}, {b}, {c};", "rrrr", (0x00020003, 0x00000504, 1), 23),
    ("selp.b32 {d}, {a}, {b}, {c};", "rrrp", (11, 22, 1), 11),
    ("selp.b32 {d}, {a}, {b}, {c};", "rrrp", (11, 22, 0), 22),
    ("slct.b32.s32 {d}, {a}, {b}, {c};", "rrrr", (11, 22, -1 & M32), 22),
    ("set.gt.u32.s32 {d}, {a}, {b};", "rrrr", (1, -1 & M32), M32),
]

COMPARES = [
    ("setp.eq.s32 {d}, {a}, {b};", "prrr", (5, 5), 1),
    ("setp.ne.b64 {d}, {a}, {b};", "pddd", (5, 5), 0),
    ("setp.lt.s32 {d}, {a}, {b};", "prrr", (-1 & M32, 0), 1),
    ("setp.lt.u32 {d}, {a}, {b};", "prrr", (-1 & M32, 0), 0),
    ("setp.ge.s32 {d}, {a}, -5;", "prrr", (-5 & M32,), 1),
    ("setp.hi.u32 {d}, {a}, {b};", "prrr", (2, 1), 1),
    ("setp.gt.f32 {d}, {a}, {b};", "prrr", (f32(1.5), f32(-2)), 1),
    ("setp.lt.f32 {d}, {a}, {b};", "prrr", (f32(math.nan), f32(1)), 0),
    ("setp.ltu.f32 {d}, {a}, {b};", "prrr", (f32(math.nan), f32(1)), 1),
    ("setp.neu.f32 {d}, {a}, {b};", "prrr", (f32(math.nan), f32(math.nan)), 1),
    ("setp.ne.f32 {d}, {a}, {b};", "prrr", (f32(math.nan), f32(1)), 0),
    ("setp.lt.and.s32 {d}, {a}, 3, {b};", "prpr", (1, 0), 0),
    ("setp.lt.or.s32 {d}, {a}, 3, {b};", "prpr", (7, 1), 1),
    ("and.pred {d}, {a}, {b};", "pppp", (1, 0), 0),
    ("or.pred {d}, {a}, {b};", "pppp", (1, 0), 1),
    ("xor.pred {d}, {a}, {b};", "pppp", (1, 1), 0),
    ("not.pred {d}, {a};", "pppp", (0,), 1),
]

FLOATS = [
    ("add.f32 {d}, {a}, {b};", "rrrr", (f32(1.5), f32(2.25)), f32(3.75)),
    ("add.rn.f32 {d}, {a}, {b};", "rrrr", (f32(2**24), f32(1)), f32(2**24)),
    ("sub.f32 {d}, {a}, {b};", "rrrr", (f32(1), f32(0.75)), f32(0.25)),
    ("mul.f32 {d}, {a}, {b};", "rrrr", (f32(3e38), f32(10)), f32(math.inf)),
    ("mul.ftz.f32 {d}, {a}, {b};", "rrrr", (f32(1e-30), f32(1e-10)), 0),
    # (1 + 2^-12)^2 - 1 - 2^-11 = 2^-24 only if the product is not rounded first
    ("fma.rn.f32 {d}, {a}, {b}, {c};", "rrrr", (f32(1 + 2**-12), f32(1 + 2**-12), f32(-1 - 2**-11)), f32(2**-24)),
    # 2^-24 (1 - 2^-30) + 1 + 2^-23 lies just below the middle of two floats; float64 rounds it to the middle
    (
        "fma.rn.f32 {d}, {a}, {b}, {c};",
        "rrrr",
        (f32(2**-24 * (1 + 2**-15)), f32(1 - 2**-15), f32(1 + 2**-23)),
        f32(1 + 2**-23),
    ),
    ("div.rn.f32 {d}, {a}, {b};", "rrrr", (f32(1), f32(3)), f32(np.float32(1) / np.float32(3))),
    ("rcp.approx.ftz.f32 {d}, {a};", "rrrr", (f32(4),), f32(0.25)),
    ("sqrt.rn.f32 {d}, {a};", "rrrr", (f32(2.25),), f32(1.5)),
    ("rsqrt.approx.f32 {d}, {a};", "rrrr", (f32(0.25),), f32(2)),
    ("ex2.approx.f32 {d}, {a};", "rrrr", (f32(-3),), f32(0.125)),
    ("lg2.approx.f32 {d}, {a};", "rrrr", (f32(32),), f32(5)),
    ("min.f32 {d}, {a}, {b};", "rrrr", (f32(math.nan), f32(2)), f32(2)),
    ("min.f32 {d}, {a}, {b};", "rrrr", (f32(0.0), f32(-0.0)), f32(-0.0)),
    ("max.f32 {d}, {a}, {b};", "rrrr", (f32(-1), f32(-2)), f32(-1)),
    ("neg.f32 {d}, {a};", "rrrr", (f32(2),), f32(-2)),
    ("abs.f32 {d}, {a};", "rrrr", (f32(-2),), f32(2)),
    ("copysign.f32 {d}, {a}, {b};", "rrrr", (f32(-1), f32(3)), f32(-3)),
    ("add.f64 {d}, {a}, {b};", "dddd", (0x3FF0000000000000, 0x3FF0000000000000), 0x4000000000000000),
    ("fma.rn.f64 {d}, {a}, {b}, {c};", "dddd", (0x4000000000000000,) * 3, 0x4018000000000000),
    ("add.f16 {d}, {a}, {b};", "hhhh", (f16(1), f16(2**-11)), f16(1)),
    ("mul.f16x2 {d}, {a}, {b};", "rrrr", (f16(2) | f16(3) << 16, f16(5) | f16(7) << 16), f16(10) | f16(21) << 16),
    ("fma.rn.bf16x2 {d}, {a}, {b}, {c};", "rrrr", (0x40004040, 0x40404000, 0x3F803F80), 0x40E040E0),
    ("add.rn.f32x2 {d}, {a}, {b};", "dddd", (f32(1) | f32(2) << 32, f32(3) | f32(5) << 32), f32(4) | f32(7) << 32),
    ("mul.rn.f32x2 {d}, {a}, {b};", "dddd", (f32(1) | f32(2) << 32, f32(3) | f32(5) << 32), f32(3) | f32(10) << 32),
    ("fma.rn.f32x2 {d}, {a}, {b}, {c};", "dddd",
     (f32(2) | f32(3) << 32, f32(4) | f32(5) << 32, f32(1) | f32(-1) << 32), f32(9) | f32(14) << 32),
]  # fmt: skip

CONVERSIONS = [
    ("cvt.u32.u16 {d}, {a};", "rhhh", (0xFFFF,), 0xFFFF),
    ("cvt.s32.s16 {d}, {a};", "rhhh", (0xFFFF,), M32),
    ("cvt.u16.u32 {d}, {a};", "hrrr", (0x12345678,), 0x5678),
    ("cvt.u64.u32 {d}, {a};", "drrr", (M32,), M32),
    ("cvt.s64.s32 {d}, {a};", "drrr", (M32,), 2**64 - 1),
    ("cvt.u32.u64 {d}, {a};", "rddd", (0x123456789,), 0x23456789),
    ("cvt.u32.u8 {d}, {a};", "rrrr", (0x1FF,), 0xFF),
    ("cvt.s32.s8 {d}, {a};", "rrrr", (0x80,), -128 & M32),
    ("cvt.sat.u8.s32 {d}, {a};", "rrrr", (300,), 255),
    ("cvt.rn.f32.s32 {d}, {a};", "rrrr", (-3 & M32,), f32(-3)),
    ("cvt.rn.f32.u32 {d}, {a};", "rrrr", (0x01000001,), f32(2**24)),
    ("cvt.rn.f32.u64 {d}, {a};", "rddd", (2**40,), f32(2**40)),
    ("cvt.rzi.s32.f32 {d}, {a};", "rrrr", (f32(-2.9),), -2 & M32),
    ("cvt.rni.s32.f32 {d}, {a};", "rrrr", (f32(2.5),), 2),
    ("cvt.rpi.u32.f32 {d}, {a};", "rrrr", (f32(2.1),), 3),
    ("cvt.rzi.u32.f32 {d}, {a};", "rrrr", (f32(-5),), 0),
    ("cvt.rzi.s32.f32 {d}, {a};", "rrrr", (f32(3e10),), 0x7FFFFFFF),
    ("cvt.rn.f16.f32 {d}, {a};", "hrrr", (f32(1 + 2**-11),), f16(1)),
    ("cvt.rz.f16.f32 {d}, {a};", "hrrr", (f32(1.9999),), f16(1.9990234375)),
    ("cvt.f32.f16 {d}, {a};", "rhhh", (f16(-0.5),), f32(-0.5)),
    ("cvt.f32.bf16 {d}, {a};", "rhhh", (0x3FC0,), f32(1.5)),
    ("cvt.rn.bf16.f32 {d}, {a};", "hrrr", (0x3F808000,), 0x3F80),
    ("cvt.rn.bf16.f32 {d}, {a};", "hrrr", (0x3F818000,), 0x3F82),
    ("cvt.rni.f32.f32 {d}, {a};", "rrrr", (f32(3.5),), f32(4)),
    ("cvt.rn.f16x2.f32 {d}, {a}, {b};", "rrrr", (f32(1), f32(2)), f16(1) << 16 | f16(2)),
    ("cvt.rn.bf16x2.f32 {d}, {a}, {b};", "rrrr", (f32(1), f32(2)), 0x3F804000),
    ("cvt.rn.relu.f16x2.f32 {d}, {a}, {b};", "rrrr", (f32(-1), f32(2)), f16(2)),
    ("cvt.rn.satfinite.e4m3x2.f32 {d}, {a}, {b};", "hrrr", (f32(1.0), f32(1000.0)), 0x387E),
    ("cvt.rn.satfinite.e5m2x2.f32 {d}, {a}, {b};", "hrrr", (f32(1.0), f32(-2.0)), 0x3CC0),
    ("cvt.rn.f16x2.e4m3x2 {d}, {a};", "rhhh", (0x38C4,), f16(1) << 16 | f16(-3)),
    ("cvt.rn.f16x2.e5m2x2 {d}, {a};", "rhhh", (0x3CC0,), f16(1) << 16 | f16(-2)),
]  # fmt: skip


@pytest.mark.parametrize("uniform", [True, False], ids=["uniform", "per_lane"])
@pytest.mark.parametrize(
    ("text", "kinds", "operands", "expected"),
    INTEGER + COMPARES + FLOATS + CONVERSIONS,
    ids=lambda value: value.split(" {")[0] if isinstance(value, str) and "{" in value else "",
)
def test_instruction(text: str, kinds: str, operands: tuple[int, ...], expected: int, uniform: bool) -> None:
    assert lanes_of(text, *operands, uniform=uniform, kinds=kinds) == [expected] * 32


def test_lanes_are_independent() -> None:
    """Lane n computes n * n - n with its own operands."""
    lanes = list(range(32))
    assert lanes_of("mad.lo.s32 {d}, {a}, {a}, {b};", lanes, [-n & M32 for n in lanes], uniform=False) == [
        n * n - n for n in lanes
    ]


def test_shift_amounts_per_lane() -> None:
    amounts = list(range(16, 48))
    expected = [1 << n if n < 32 else 0 for n in amounts]
    assert lanes_of("shl.b32 {d}, {a}, {b};", 1, amounts, uniform=False) == expected
