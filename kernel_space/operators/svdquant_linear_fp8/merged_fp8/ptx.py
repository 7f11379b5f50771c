"""PTX of ``merged_fp8``: E4M3 numbers by fours, largest magnitudes of 16-bit numbers by twos."""

from typing import Any

from cutlass import Int32

from kernel_space.operators.nvfp4_quantize.parts.ptx import inline


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
