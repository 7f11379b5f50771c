"""PTX of the kernel ``staged`` and its like: eight codes to bf16 or fp16 in the order of K."""

from typing import Any

from kernel_space.operators.nvfp4_quantize.parts.ptx import inline

# 2^120 and 2^119 in both halves: together what a scale's bits lack of ``scale * 2^119``.
_FACTOR = """{
.reg .b32 t, first, second;
prmt.b32 t, $1, 0, $2;
shl.b32 t, t, 4;
mov.b32 first, 0x7B807B80;
mov.b32 second, 0x7B007B00;
mul.rn.bf16x2 t, t, first;
mul.rn.bf16x2 $0, t, second;
}"""
# Of fp16: 2^15 is what a scale's bits, at 13 to 7, lack of ``scale * 2^7``.
_HALF_FACTOR = """{
.reg .b32 t, lacking;
prmt.b32 t, $1, 0, $2;
shl.b32 t, t, 7;
mov.b32 lacking, 0x78007800;
mul.rn.f16x2 $0, t, lacking;
}"""
# ``q`` has codes 0, 2, 4, 6 of the word in its bytes, ``t`` codes 1, 3, 5, 7, zeros above each. A pair of neighbours
# comes to the bottom of both halves; one product with 2^12 + 2^6 puts the sign in place, and bits eem below it. Integer
# products go to another pipe than logic, shifts and ``prmt``, which run at half rate: eleven of these make eight codes.
_PAIR = """prmt.b32 v, q, t, {selector:#06x};
mul.lo.u32 v, v, 0x1040;
and.b32 v, v, 0x81C081C0;
"""
_SCALED = """mul.rn.bf16x2 v, v, $5;
mul.rn.bf16x2 ${out}, v, ${inverse};
"""
_EXACT = "mul.rn.bf16x2 ${out}, v, $5;\n"
# Of fp16 bits eem are at 11 to 9, where one product would add the sign to them.
_HALF_PAIR = """prmt.b32 v, q, t, {selector:#06x};
mul.lo.u32 s, v, 0x1000;
mul.lo.u32 v, v, 0x0200;
and.b32 s, s, 0x80008000;
lop3.b32 v, v, 0x0E000E00, s, 0xEA;
"""
_HALF_SCALED = _SCALED.replace("bf16x2", "f16x2")
_HALF_EXACT = _EXACT.replace("bf16x2", "f16x2")
_ZERO_BYTE = 8  # of a selector of ``prmt``: the sign of byte 0, which has none, eight times


def block_factor(scales: Any, selector: Any, *, is_bf16: bool = True) -> Any:
    """One of four E4M3 bytes as a factor of pairs of ``weights_of_word``; ``selector``: ``factor_selector``."""
    return inline(_FACTOR if is_bf16 else _HALF_FACTOR, "r", ("r", scales), ("r", selector))[0]


def factor_selector(block: Any) -> Any:
    """For ``block_factor``: byte ``block`` at the bottom of both halves, zeros at their top."""
    return block | block << 8 | 0x4040


def weights_of_word(word: Any, factor: Any, inverses: Any = None, *, is_bf16: bool = True) -> tuple[Any, ...]:
    """Eight codes times a factor, exact, times eight numbers (four pairs), if there are any, rounded: four pairs of
    bf16 or fp16 in the order of K. The exact products are 2^-7 of the values.
    """
    pair, scaled, exact = (_PAIR, _SCALED, _EXACT) if is_bf16 else (_HALF_PAIR, _HALF_SCALED, _HALF_EXACT)
    lines = [
        "{",
        ".reg .b32 v, q, t;" if is_bf16 else ".reg .b32 v, q, t, s;",
        "and.b32 q, $4, 0x0F0F0F0F;",
        "shr.b32 t, $4, 4;",
        "and.b32 t, t, 0x0F0F0F0F;",
    ]
    for j in range(4):
        selector = _ZERO_BYTE << 12 | (4 + j) << 8 | _ZERO_BYTE << 4 | j
        product = (scaled if inverses else exact).format(out=j, inverse=6 + j)
        lines.append(pair.format(selector=selector) + product)
    lines.append("}")
    operands = [("r", word), ("r", factor), *(("r", one) for one in inverses or ())]
    return inline("\n".join(lines), "rrrr", *operands)


def store_pair(address: Any, words: Any) -> None:
    """Two 32-bit words to an 8-byte aligned shared address."""
    operands = [("r", one) for one in words]
    inline("st.shared.v2.b32 [$0], {$1, $2};", "", ("r", address), *operands, effects=True)


def exchanged(first: Any, second: Any, odd: Any, distance: int) -> tuple[Any, Any]:
    """A lane's ``second`` for the ``first`` of the lane so far away that is ``odd`` (Int32, 0 or 1): what two by two
    words of two lanes are when they change rows for columns.
    """
    text = f"""{{
.reg .pred p;
.reg .b32 t;
setp.ne.b32 p, $4, 0;
selp.b32 t, $2, $3, p;
shfl.sync.bfly.b32 t, t, {distance}, 0x1F, 0xFFFFFFFF;
selp.b32 $0, t, $2, p;
selp.b32 $1, $3, t, p;
}}"""
    return inline(text, "rr", ("r", first), ("r", second), ("r", odd), effects=True)
