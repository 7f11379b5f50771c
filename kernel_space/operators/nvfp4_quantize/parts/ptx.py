"""Instructions that the DSL has no operation for, or that it may contract or reorder: loads, stores, fp32 arithmetic.

Every operation of fp32 is written with its rounding, so that neither NVVM nor ptxas makes one fma of two.
"""

from typing import Any

from cutlass import Float32, Int32, Int64, Uint32, cute
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm

_TYPES = {"r": Uint32, "f": Float32}


def load_four_if(address: Any, wanted: Any, otherwise: int = 0) -> tuple[Any, ...]:
    """Four 32-bit words at a 16-byte aligned global address, or ``otherwise`` without a load."""
    text = "{\n.reg .pred p;\nsetp.ne.b32 p, $5, 0;\n"
    text += "".join(f"mov.b32 ${i}, {otherwise:#x};\n" for i in range(4))
    text += "@p ld.global.v4.b32 {$0, $1, $2, $3}, [$4];\n}"
    return inline(text, "rrrr", ("l", Int64(address)), ("r", Int32(wanted)), effects=True)


def store_if(address: Any, words: Any, wanted: Any) -> None:
    """One, two or four 32-bit words to a global address that is a multiple of their size, if ``wanted``."""
    count = len(words)
    values = ", ".join(f"${i + 2}" for i in range(count))
    kind, values = ("b32", values) if count == 1 else (f"v{count}.b32", f"{{{values}}}")
    text = f"{{\n.reg .pred p;\nsetp.ne.b32 p, $1, 0;\n@p st.global.{kind} [$0], {values};\n}}"
    inline(
        text, "", ("l", Int64(address)), ("r", Int32(wanted)), *(("r", word) for word in words), effects=True
    )


def bits_of(value: Any) -> Any:
    """The 32 bits of an fp32 number."""
    return inline("mov.b32 $0, $1;", "r", ("f", value))[0]


def of_bits(word: Any) -> Any:
    """The fp32 number of 32 bits."""
    return inline("mov.b32 $0, $1;", "f", ("r", word))[0]


def two_halves(word: Any, kind: str) -> tuple[Any, ...]:
    """The fp32 values of two ``f16`` or ``bf16`` numbers, the low half first; exact."""
    if kind == "bf16":
        text = "{\n.reg .b32 h;\nshl.b32 h, $2, 16;\nmov.b32 $0, h;\nand.b32 h, $2, 0xFFFF0000;\nmov.b32 $1, h;\n}"
    else:
        text = "{\n.reg .b16 l, h;\nmov.b32 {l, h}, $2;\ncvt.f32.f16 $0, l;\ncvt.f32.f16 $1, h;\n}"
    return inline(text, "ff", ("r", word))


def multiply(a: Any, b: Any) -> Any:
    return inline("mul.rn.f32 $0, $1, $2;", "f", ("f", a), ("f", b))[0]


def multiply_add(a: Any, b: Any, c: Any) -> Any:
    """a * b + c with one rounding."""
    return inline("fma.rn.f32 $0, $1, $2, $3;", "f", ("f", a), ("f", b), ("f", c))[0]


def multiply_each(a: list[Any], b: list[Any], *, paired: bool) -> list[Any]:
    """``multiply`` element by element; ``paired``: two at once, which sm_100 can."""
    if not paired:
        return [multiply(x, y) for x, y in zip(a, b, strict=True)]
    pairs = [cute.arch.mul_packed_f32x2(x, y) for x, y in zip(_pairs(a), _pairs(b), strict=True)]
    return [value for pair in pairs for value in pair]


def multiply_add_each(a: list[Any], b: list[Any], c: list[Any], *, paired: bool) -> list[Any]:
    """``multiply_add`` element by element; ``paired``: two at once, which sm_100 can."""
    if not paired:
        return [multiply_add(x, y, z) for x, y, z in zip(a, b, c, strict=True)]
    triples = zip(_pairs(a), _pairs(b), _pairs(c), strict=True)
    pairs = [cute.arch.fma_packed_f32x2(x, y, z) for x, y, z in triples]
    return [value for pair in pairs for value in pair]


def divide(a: Any, b: Any) -> Any:
    """IEEE division, rounded to nearest even."""
    return inline("div.rn.f32 $0, $1, $2;", "f", ("f", a), ("f", b))[0]


def rough_reciprocal(a: Any) -> Any:
    """1 / a, off by less than one unit in the last place; subnormal numbers count as zero."""
    return inline("rcp.approx.ftz.f32 $0, $1;", "f", ("f", a))[0]


def larger_magnitude(a: Any, b: Any) -> Any:
    """max(|a|, |b|), NaN if one of them is."""
    text = "{\n.reg .f32 s, t;\nabs.f32 s, $1;\nabs.f32 t, $2;\nmax.NaN.f32 $0, s, t;\n}"
    return inline(text, "f", ("f", a), ("f", b))[0]


def unless_zero(condition: Any, word: Any) -> Any:
    """``word``, or 0 where ``condition`` is 0."""
    text = "{\n.reg .pred p;\nsetp.ne.b32 p, $1, 0;\nselp.b32 $0, $2, 0, p;\n}"
    return inline(text, "r", ("r", condition), ("r", word))[0]


def e4m3_bytes(low: Any, high: Any) -> Any:
    """Two bytes of the E4M3 numbers nearest to two fp32 numbers, beyond 448 448, of NaN 0x7F; ``low`` comes first."""
    text = "{\n.reg .b16 h;\ncvt.rn.satfinite.e4m3x2.f32 h, $2, $1;\ncvt.u32.u16 $0, h;\n}"
    return inline(text, "r", ("f", low), ("f", high))[0]


def e2m1_word(values: list[Any]) -> Any:
    """Eight E2M1 codes of fp32 numbers, the first in the low nibble; sm_100."""
    lines = [f"cvt.rn.satfinite.e2m1x2.f32 b{i}, ${2 * i + 2}, ${2 * i + 1};" for i in range(4)]
    text = "{\n.reg .b8 b0, b1, b2, b3;\n" + "\n".join(lines) + "\nmov.b32 $0, {b0, b1, b2, b3};\n}"
    return inline(text, "r", *(("f", value) for value in values))[0]


# The sum of a number and 2^23 is rounded to a whole number, ties to even, which is then in its low bits. ``s`` is an
# eighth of the magnitude, at most 1: what is beyond 8 gives the code 8, which is made 7 afterwards. Bits of positive
# numbers are in their order, and ptxas makes one instruction of two minima of integers (VIMNMX3).
_E2M1_CODE = """{
.reg .f32 s, a, b, c;
.reg .b32 u, v, w;
abs.f32 s, $1;
mul.rn.sat.f32 s, s, $2;
fma.rn.f32 a, s, 0f41800000, 0f4B000000;
fma.rn.f32 b, s, 0f41000000, 0f4B000002;
fma.rn.f32 c, s, 0f40800000, 0f4B000004;
mov.b32 u, a;
mov.b32 v, b;
mov.b32 w, c;
min.s32 u, u, v;
min.s32 $0, u, w;
}"""
_WHOLE = 0x4B000000  # 2^23


def e2m1_word_by_sums(values: list[Any], eighth: Any, signs: Any) -> Any:
    """Eight E2M1 codes of ``8 * eighth * value`` without the conversion, which sm_90 has not.

    E2M1 has steps of 0.5, 1 and 2 on [0, 2], [2, 4] and [4, 6]. Each of three roundings gives the code on its own
    interval and a larger one elsewhere, so the smallest is right everywhere. ``signs``: which bits may be signs.
    """
    codes, tops = Uint32(0), Uint32(0)
    for value in reversed(values):
        number = inline(_E2M1_CODE, "r", ("f", value), ("f", eighth))[0]
        codes = codes * Uint32(16) + number
        tops = _shift_in(tops, bits_of(value))
    codes = codes - Uint32(sum(_WHOLE << 4 * i for i in range(8)) & 0xFFFFFFFF)
    codes = codes - ((codes >> Uint32(3)) & Uint32(0x11111111))
    return codes | (tops & signs)


def _shift_in(word: Any, bits: Any) -> Any:
    """``word`` moved up by 4 bits, the highest 4 of ``bits`` below it."""
    return inline("shf.l.wrap.b32 $0, $1, $2, 4;", "r", ("r", bits), ("r", word))[0]


def _pairs(values: list[Any]) -> list[tuple[Any, Any]]:
    return list(zip(values[0::2], values[1::2], strict=True))


def inline(
    text: str, results: str, *operands: tuple[str, Any], effects: bool = False, early: bool = True
) -> tuple[Any, ...]:
    """Inline PTX: register kinds of the results, then (constraint, value) of the operands. ``early``: results may be
    written before all operands are read.
    """
    kinds = {"r": ir.IntegerType.get_signless(32), "f": ir.F32Type.get()}
    types = [kinds[letter] for letter in results]
    values = [value.ir_value() for _, value in operands]
    constraints = ",".join(
        [f"={'&' * early}{letter}" for letter in results] + [letter for letter, _ in operands]
    )
    if not types:
        llvm.inline_asm(None, values, text, constraints, has_side_effects=True, asm_dialect=0)
        return ()
    kind = types[0] if len(types) == 1 else ir.Type.parse(f"!llvm.struct<({', '.join(map(str, types))})>")
    value = llvm.inline_asm(kind, values, text, constraints, has_side_effects=effects, asm_dialect=0)
    if len(types) == 1:
        return (_TYPES[results](value),)
    parts = [llvm.extractvalue(types[i], value, [i]) for i in range(len(types))]
    return tuple(_TYPES[letter](part) for letter, part in zip(results, parts, strict=True))
