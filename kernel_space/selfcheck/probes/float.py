"""Probes of floating-point arithmetic: denormals, rounding, NaN bits, comparisons, approximations."""

from __future__ import annotations

from kernel_space.selfcheck.text import bits
from kernel_space.selfcheck.text.probe import Probe, Target
from kernel_space.selfcheck.text.ptx_text import elementwise

_EDGES = bits.tuples(bits.F32_EDGES, "float edges", 256, 3)
_NEAR = bits.near("float near", 128, 3)
_MIXED = _EDGES + _NEAR
_F16_WORDS = tuple(a << 16 | b for a, b in zip(bits.F16_EDGES, reversed(bits.F16_EDGES), strict=True))
_HALVES = bits.tuples(_F16_WORDS, "halves", 256, 3)
_BF16_EDGES = tuple(
    a & 0xFFFF0000 | b >> 16 for a, b in zip(bits.F32_EDGES, reversed(bits.F32_EDGES), strict=True)
)
_BRAINS = bits.tuples(_BF16_EDGES, "brains", 256, 3)

_BINARY = (
    "add.rn.f32", "sub.rn.f32", "mul.rn.f32", "add.f32", "mul.f32", "add.rn.ftz.f32", "mul.rn.ftz.f32", "add.rz.f32",
    "mul.rz.f32", "add.rn.sat.f32", "div.rn.f32", "min.f32", "max.f32", "min.NaN.f32", "max.NaN.f32", "min.ftz.f32",
    "copysign.f32",
)  # fmt: skip
_TERNARY = ("fma.rn.f32", "fma.rn.ftz.f32", "fma.rz.f32", "fma.rn.sat.f32")
_UNARY = (
    "abs.f32",
    "neg.f32",
    "abs.ftz.f32",
    "rcp.rn.f32",
    "sqrt.rn.f32",
    "testp.finite.f32",
    "testp.subnormal.f32",
)
_HALF = (
    ("add.rn.f16x2", 2), ("sub.f16x2", 2), ("mul.rn.f16x2", 2), ("mul.ftz.f16x2", 2), ("fma.rn.f16x2", 3),
    ("fma.rn.relu.f16x2", 3), ("min.f16x2", 2), ("max.NaN.f16x2", 2), ("neg.f16x2", 1), ("abs.f16x2", 1),
)  # fmt: skip
_BRAIN = (
    ("add.rn.bf16x2", 2), ("mul.rn.bf16x2", 2), ("fma.rn.bf16x2", 3), ("fma.rn.relu.bf16x2", 3), ("max.bf16x2", 2),
    ("min.NaN.bf16x2", 2), ("neg.bf16x2", 1), ("abs.bf16x2", 1),
)  # fmt: skip
# approximate instruction -> units in the last place that the ISA allows (as an f32 result of a normal operand)
_APPROXIMATE = (("rcp.approx.f32", 1), ("ex2.approx.f32", 2), ("rsqrt.approx.f32", 3), ("sqrt.approx.f32", 2))
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def probes() -> list[Probe]:
    plain = [_of(opcode, 2, _MIXED) for opcode in _BINARY] + [_of(opcode, 3, _MIXED) for opcode in _TERNARY]
    halves = [_of(opcode, reads, _HALVES) for opcode, reads in _HALF]
    brains = [_of(opcode, reads, _BRAINS) for opcode, reads in _BRAIN]
    return [*plain, *map(_unary, _UNARY), *halves, *brains, *_approximate(), *_comparisons(), *_sm100()]


def _of(opcode: str, reads: int, inputs: bytes, target: Target = Target.SM90) -> Probe:
    operands = ", ".join(("%a", "%b", "%c")[:reads])
    asks = f"{opcode} with denormals, infinities and NaN operands: every result bit"
    return elementwise(f"float.{opcode}", asks, f"{opcode} %x, {operands};", inputs, reads=3, target=target)


def _unary(opcode: str) -> Probe:
    code = f"{opcode} %x, %a;"
    if opcode.startswith("testp"):
        code = f"{opcode} %p0, %a;\nselp.u32 %x, 1, 0, %p0;"
    return elementwise(
        f"float.{opcode}", f"{opcode} with edges", code, bits.singles(bits.F32_EDGES, opcode, 256), reads=1
    )


def _approximate() -> list[Probe]:
    found = []
    for opcode, ulp in _APPROXIMATE:
        asks = f"{opcode}: within {ulp} ulp, the error the ISA documents; special values exact"
        inputs = bits.words(value & 0x7FFFFFFF for value in bits.random_words(opcode, 128))
        inputs += bits.words((0, 0x80000000, 0x3F800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x40800000))
        inputs += bits.near(opcode, 121, 1)
        found.append(elementwise(f"float.{opcode}", asks, f"{opcode} %x, %a;", inputs, reads=1, ulp=ulp))
    return found


def _comparisons() -> list[Probe]:
    """All comparisons of one pair as bits of a word."""
    lines = ["mov.u32 %x, 0;"]
    for number, how in enumerate(_COMPARISONS):
        lines += [f"setp.{how}.f32 %p0, %a, %b;", f"@%p0 or.b32 %x, %x, {1 << number};"]
    asks = f"setp {' '.join(_COMPARISONS)} (bits 0 up) with NaN, signed zeros, denormals"
    select = "setp.lt.f32 %p0, %a, %b;\nselp.f32 %x, %a, %b, %p0;\n"
    select += "set.gt.f32.f32 %y, %a, %b;\nset.gt.u32.f32 %z, %a, %b;"
    return [
        elementwise("float.setp.f32", asks, "\n".join(lines), _EDGES, reads=3),
        elementwise(
            "float.selp_set.f32", "selp and set with float conditions", select, _EDGES, reads=3, writes=3
        ),
    ]


def _sm100() -> list[Probe]:
    """Packed pairs of f32 and three-operand minimum: B200."""
    pair = "mov.b64 %q0, {%a, %b};\nmov.b64 %q1, {%c, %a};\nmov.b64 %q2, {%b, %c};\n"
    found = []
    for opcode, operands in (
        ("add.rn.f32x2", "%q0, %q1"),
        ("mul.rn.f32x2", "%q0, %q1"),
        ("fma.rn.f32x2", "%q0, %q1, %q2"),
    ):
        code = f"{pair}{opcode} %q3, {operands};\nmov.b64 {{%x, %y}}, %q3;"
        asks = f"{opcode}: both halves as the scalar instruction, denormals kept"
        found.append(
            elementwise(f"float.{opcode}", asks, code, _MIXED, reads=3, writes=2, target=Target.SM100A)
        )
    for how in ("min", "max", "max.NaN"):
        code = f"{how}.f32 %x, %a, %b, %c;"
        name = f"float.{how}.f32.three_operands"
        found.append(elementwise(name, code, code, _EDGES, reads=3, target=Target.SM100A))
    return found
