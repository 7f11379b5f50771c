"""``redux.sync`` on floats, three-operand maxima, ``stmatrix`` of bytes: worked out by hand from the PTX ISA."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.machine.ptx import f32, lanes_of, run_body

NAN = 0x7FFFFFFF
VALUES = [f32(value) for value in range(-16, 16)]
WITH_NAN = [*VALUES[:5], f32(math.nan), *VALUES[6:]]
ZEROS = [f32(0.0)] * 31 + [f32(-0.0)]


@pytest.mark.parametrize(
    ("modifiers", "lanes", "expected"),
    [
        ("max", VALUES, f32(15)),
        ("min", VALUES, f32(-16)),
        ("max.abs", VALUES, f32(16)),
        ("min.abs", VALUES, f32(0)),
        ("max", WITH_NAN, f32(15)),
        ("max.NaN", WITH_NAN, NAN),
        ("min.NaN", VALUES, f32(-16)),
        ("min", ZEROS, f32(-0.0)),
        ("max", ZEROS, f32(0.0)),
        ("max", [f32(math.nan)] * 32, NAN),
    ],
)
def test_redux_of_floats(modifiers: str, lanes: list[int], expected: int) -> None:
    text = f"redux.sync.{modifiers}.f32 {{d}}, {{a}}, 0xffffffff;"
    assert lanes_of(text, lanes, uniform=False) == [expected] * 32


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize(
    ("text", "operands", "expected"),
    [
        ("max.f32 {d}, {a}, {b}, {c};", (1.0, 2.0, 3.0), f32(3)),
        ("max.f32 {d}, {a}, {b}, {c};", (1.0, math.nan, -3.0), f32(1)),
        ("min.f32 {d}, {a}, {b}, {c};", (1.0, 2.0, -3.0), f32(-3)),
        ("max.abs.f32 {d}, {a}, {b}, {c};", (1.0, -2.0, -3.0), f32(3)),
        ("max.abs.f32 {d}, {a}, {b}, {c};", (-0.0, -0.0, math.nan), f32(0.0)),
        ("min.abs.f32 {d}, {a}, {b}, {c};", (-4.0, 2.0, -3.0), f32(2)),
        ("max.NaN.abs.f32 {d}, {a}, {b}, {c};", (-math.inf, 2.0, 3.0), f32(math.inf)),
    ],
)
def test_three_operands(text: str, operands: tuple[float, ...], expected: int, uniform: bool) -> None:
    found = lanes_of(text, *(f32(value) for value in operands), uniform=uniform)
    assert found == [expected] * 32


@pytest.mark.parametrize("modifiers", ["NaN", "NaN.abs"])
def test_three_operands_with_nan(modifiers: str) -> None:
    text = f"max.{modifiers}.f32 {{d}}, {{a}}, {{b}}, {{c}};"
    found = lanes_of(text, f32(1), f32(2), f32(math.nan), uniform=True)
    assert np.isnan(np.array(found, np.uint32).view(np.float32)).all()


STORE = """
mov.u32 %r1, %tid.x;
mov.u32 %r10, smem;
// lane t: byte j of register i holds matrix i, row t/4 + 8 (j/2), column 2 (t%4) + j%2, as the number 16 column + row
shr.u32 %r2, %r1, 2;
and.b32 %r3, %r1, 3;
mad.lo.u32 %r4, %r3, 32, %r2;
mov.u32 %r5, 0x18081000;
mad.lo.u32 %r6, %r4, 0x01010101, %r5;
not.b32 %r7, %r6;
and.b32 %r8, %r1, 15;
mad.lo.u32 %r9, %r8, 16, %r10;
stmatrix.sync.aligned.m16n8.x2.trans.shared.b8 [%r9], {%r6, %r7};
bar.sync 0;
mad.lo.u32 %r11, %r1, 8, %r10;
ld.shared.v2.u32 {%r12, %r13}, [%r11];
ld.param.u64 %d1, [out];
mad.wide.u32 %d2, %r1, 8, %d1;
st.global.v2.u32 [%d2], {%r12, %r13};
"""


def test_stmatrix_of_bytes_stores_columns() -> None:
    """16 rows x 8 columns of bytes; column c lies at address c as 16 bytes, so byte 16 c + r is (r, c)."""
    out = np.zeros(256, np.uint8)
    result = run_body(STORE, out, smem_bytes=1024)
    assert result.ok, str(result)
    first = np.arange(128, dtype=np.uint8)
    assert out[:128].tolist() == first.tolist()
    assert out[128:].tolist() == (~first).tolist()
