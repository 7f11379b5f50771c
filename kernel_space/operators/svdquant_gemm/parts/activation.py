"""Activations of the epilogue in PTX, two elements at a time: ``v * sigmoid(a)`` as ``v / (1 + 2^t)``, t = -log2(e) a.

v is taken for no less than where t is 63, so that the product of two denominators is finite and both share one
reciprocal: three special functions for two elements. ``tanh.approx`` would be one each, but errs by 2^-11 of the tanh,
which is most of 1 + tanh(u) where u is negative. Bounds: ``numerics.activation``.
"""

import math
import struct
from typing import Any

from cutlass import Float32
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm

SWIGLU = "swiglu"
GATE_COLUMNS = 8
LEAST = {"gelu_tanh": -7.61, "silu": -43.66, SWIGLU: -43.66}  # where t is nearly 63
_LOG2E = math.log2(math.e)
_SCALE = 2 * math.sqrt(2 / math.pi)
_CUBE = 0.044715

DECLARE = ".reg .f32 tl, th, dl, dh, r;\n"


def of_pair(name: str) -> str:
    """Text that replaces ``l`` and ``h`` by their activations; ``swiglu``: as gates of what comes after. ``DECLARE``
    declares what it takes beside them.
    """
    first = "".join(_exponent(name, value, t) for value, t in (("l", "tl"), ("h", "th")))
    return (
        f"{first}ex2.approx.ftz.f32 dl, tl;\nex2.approx.ftz.f32 dh, th;\n"
        f"add.rn.f32 dl, dl, {_bits(1.0)};\nadd.rn.f32 dh, dh, {_bits(1.0)};\nmul.rn.f32 r, dl, dh;\n"
        "rcp.approx.ftz.f32 r, r;\nmul.rn.f32 dh, r, dh;\nmul.rn.f32 dl, r, dl;\n"
        "mul.rn.f32 l, l, dh;\nmul.rn.f32 h, h, dl;\n"
    )


def activate_pair(low: Any, high: Any, name: str) -> tuple[Any, Any]:
    """Two fp32 values -> their activations; of ``swiglu`` the gates. To the bit as ``of_pair``, with the packed
    arithmetic of sm_100a.
    """
    text = (
        "{\n.reg .b64 v, t, d, a, b;\n.reg .f32 l, h, r;\n"
        f"max.NaN.f32 l, $2, {_bits(LEAST[name])};\nmax.NaN.f32 h, $3, {_bits(LEAST[name])};\nmov.b64 v, {{l, h}};\n"
        f"{_packed_exponent(name)}mov.b64 {{l, h}}, t;\nex2.approx.ftz.f32 l, l;\nex2.approx.ftz.f32 h, h;\n"
        f"mov.b64 d, {{l, h}};\nmov.b64 a, {_twice(1.0)};\nadd.rn.f32x2 d, d, a;\nmov.b64 {{l, h}}, d;\n"
        "mul.rn.f32 r, l, h;\nrcp.approx.ftz.f32 r, r;\nmov.b64 d, {h, l};\nmov.b64 t, {r, r};\nmul.rn.f32x2 d, d, t;\n"
        "mul.rn.f32x2 v, v, d;\nmov.b64 {$0, $1}, v;\n}"
    )
    f32 = ir.F32Type.get()
    pair = llvm.inline_asm(
        ir.Type.parse("!llvm.struct<(f32, f32)>"),
        [Float32(low).ir_value(), Float32(high).ir_value()],
        text,
        "=f,=f,f,f",
        has_side_effects=False,
        asm_dialect=0,
    )
    return Float32(llvm.extractvalue(f32, pair, [0])), Float32(llvm.extractvalue(f32, pair, [1]))


def _exponent(name: str, value: str, t: str) -> str:
    bound = f"max.NaN.f32 {value}, {value}, {_bits(LEAST[name])};\n"
    if name != "gelu_tanh":
        return f"{bound}mul.rn.f32 {t}, {value}, {_bits(-_LOG2E)};\n"
    linear = -_LOG2E * _SCALE
    return (
        f"{bound}mul.rn.f32 {t}, {value}, {value};\n"
        f"fma.rn.f32 {t}, {t}, {_bits(linear * _CUBE)}, {_bits(linear)};\n"
        f"mul.rn.f32 {t}, {t}, {value};\n"
    )


def _packed_exponent(name: str) -> str:
    if name != "gelu_tanh":
        return f"mov.b64 a, {_twice(-_LOG2E)};\nmul.rn.f32x2 t, v, a;\n"
    linear = -_LOG2E * _SCALE
    return (
        f"mov.b64 a, {_twice(linear * _CUBE)};\nmov.b64 b, {_twice(linear)};\nmul.rn.f32x2 t, v, v;\n"
        "fma.rn.f32x2 t, t, a, b;\n"
        "mul.rn.f32x2 t, t, v;\n"
    )


def _twice(value: float) -> str:
    return "0x" + 2 * struct.pack(">f", value).hex().upper()


def _bits(value: float) -> str:
    return "0f" + struct.pack(">f", value).hex().upper()
