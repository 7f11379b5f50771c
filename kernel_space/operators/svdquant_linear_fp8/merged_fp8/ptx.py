"""PTX of ``merged_fp8``: E4M3 numbers by fours, largest magnitudes of 16-bit numbers by twos."""

from typing import Any

from cutlass import Int32

from kernel_space.operators.nvfp4_quantize.parts.ptx import inline

# Bits ``eem`` of a code at bits 11..9 of an fp16 number are the code times 2^-14, its sign at bit 15
# (``svdquant_gemm/sm90a_parts/dequant.py``). A byte of each of two words lies in a half of ``v``, what else is there is
# masked off; low nibbles are one pair of numbers, high ones the other.
_PAIRS = """{
.reg .b32 v, s, t;
prmt.b32 v, $2, $3, $4;
shl.b32 t, v, 9;
and.b32 t, t, 0x0E000E00;
shl.b32 s, v, 12;
lop3.b32 t, s, 0x80008000, t, 0xEA;
mul.rn.f16x2 $0, t, $5;
shl.b32 t, v, 5;
and.b32 t, t, 0x0E000E00;
shl.b32 s, v, 8;
lop3.b32 t, s, 0x80008000, t, 0xEA;
mul.rn.f16x2 $1, t, $5;
}"""


def pairs_of_bytes(words: Any, first: int, selector: Any, factor: Any) -> list[Any]:
    """Codes of a byte of ``words[first]`` and of the same byte of the next word, times ``factor``: two pairs of fp16
    numbers, each times 2^-DEQUANT_SHIFT, low nibbles and then high ones, that of the first word in the low half.
    """
    return list(
        inline(_PAIRS, "rr", *(("r", one) for one in (words[first], words[first + 1], selector, factor)))
    )


def bytes_selector(number: Any) -> Any:
    """For ``pairs_of_bytes``: byte ``number`` of either word as bytes 0 and 2."""
    return number * 0x101 + 0x400


def e4m3_word(first: Any, second: Any) -> Any:
    """Two pairs of fp32 numbers as four E4M3 numbers in a word, the first pair low; beyond 448 448."""
    text = (
        "{\n.reg .b16 l, h;\ncvt.rn.satfinite.e4m3x2.f32 l, $2, $1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 h, $4, $3;\nmov.b32 $0, {l, h};\n}"
    )
    return inline(text, "r", *(("f", value) for value in (*first, *second)))[0]


def larger_halves(largest: Any, word: Any) -> Any:
    """Of both halves the larger of ``largest``, bits of positive numbers, and the magnitude in ``word``. Bits of
    positive 16-bit numbers are in their order, NaN above infinity.
    """
    text = "{\n.reg .b32 a;\nand.b32 a, $2, 0x7FFF7FFF;\nmax.u16x2 $0, $1, a;\n}"
    return inline(text, "r", ("r", largest), ("r", word))[0]


def factor_of(largest: Any) -> Any:
    """448 / ``largest``, or 0 where that is below 2^-100; of NaN NaN."""
    text = (
        "{\n.reg .pred p;\nsetp.lt.f32 p, $1, 0f0D800000;\ndiv.rn.f32 $0, 0f43E00000, $1;\n"
        "selp.f32 $0, 0f00000000, $0, p;\n}"
    )
    return inline(text, "f", ("f", largest))[0]


def scale_of(largest: Any) -> Any:
    """``largest`` / 448 by a product with the reciprocal, or 0 where ``largest`` is below 2^-100."""
    text = (
        "{\n.reg .pred p;\nsetp.lt.f32 p, $1, 0f0D800000;\nmul.rn.f32 $0, $1, 0f3B124925;\n"
        "selp.f32 $0, 0f00000000, $0, p;\n}"
    )
    return inline(text, "f", ("f", largest))[0]


def chosen(condition: Any, yes: Any, no: Any) -> Any:
    """One of two words."""
    text = "{\n.reg .pred p;\nsetp.ne.b32 p, $1, 0;\nselp.b32 $0, $2, $3, p;\n}"
    return inline(text, "r", ("r", Int32(condition)), ("r", yes), ("r", no))[0]


def halves(low: Any, high: Any, which: int) -> Any:
    """Half ``which`` of two words, that of ``low`` below that of ``high``."""
    return inline(f"prmt.b32 $0, $1, $2, {0x7632 if which else 0x5410:#x};", "r", ("r", low), ("r", high))[0]


def load_constants(address: Any) -> list[Any]:
    """Two fp32 numbers at an 8-byte aligned shared address that nobody writes any more: no order is kept to other
    accesses, so the compiler may load them early.
    """
    return list(inline("ld.shared.v2.f32 {$0, $1}, [$2];", "ff", ("r", address)))
