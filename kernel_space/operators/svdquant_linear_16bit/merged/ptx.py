"""PTX of the first kernel of ``merged``: packed codes to pairs of neighbours along K."""

from typing import Any

from kernel_space.operators.nvfp4_quantize.parts.ptx import inline

# Bits ``eem`` of a code at bits 11..9 of an fp16 number are the code times 2^-14, its sign at bit 15
# (``svdquant_gemm/sm90a_parts/dequant.py``). The product copies the byte to bits 12..19: its high nibble is then where
# the upper number wants it, three shifts later as the low one.
_PAIR = """{
.reg .b32 v, s, t;
prmt.b32 v, $1, 0, $2;
mul.lo.u32 v, v, 0x1001;
shl.b32 t, v, 9;
and.b32 t, t, 0x0E000E00;
shl.b32 s, v, 12;
lop3.b32 t, s, 0x80008000, t, 0xEA;
mul.rn.f16x2 $0, t, $3;
}"""


def pair_of_byte(word: Any, selector: Any, factor: Any) -> Any:
    """Both codes of a byte of ``word``, the low nibble first, times ``factor``: two fp16 numbers, each times
    2^-DEQUANT_SHIFT. ``selector`` is 0x4440 + the number of the byte.
    """
    return inline(_PAIR, "r", ("r", word), ("r", selector), ("r", factor))[0]


def byte_selector(number: Any) -> Any:
    """For ``pair_of_byte``: byte ``number`` of a word, zeros above it."""
    return number | 0x4440
