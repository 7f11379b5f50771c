"""Exact E2M1 x E4M3 -> bf16 on CUDA cores, beside what ``svdquant_gemm.sm90a_parts.dequant`` does to fp16.

A word holds eight codes n0..n7, low nibble first. Bits ``eem`` of a code, put at bits 8..6 of a bf16 number, are ``code
* 2^-126`` (subnormals included: exponent field 0 of both formats means the same); a scale's bits, put at bits 10..4,
are ``scale * 2^-120``. One multiplication by ``scale * 2^119`` gives ``code * scale * 2^-7``: at most 6 significant
bits, so exact, and smaller than its value by the same factor as in fp16.
"""

from typing import Any

from cutlass import Uint32
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm

from kernel_space.operators.svdquant_gemm.sm90a_parts import dequant as fp16

# 2^120 and 2^119 in both halves: together what a scale's bits lack of ``scale * 2^119``.
_UP = ("0x7B807B80", "0x7B007B00")
_MAGNITUDE, _SIGN = "0x01C001C0", "0x80008000"
# Of the pairs (n0, n4), (n2, n6) and (n1, n5), (n3, n7): how far left magnitude and sign go.
_SHIFTS = (((6, 12), (-2, 4)), ((2, 8), (-6, 0)))


def scale_pair(word: Any, *, is_bf16: bool) -> Any:
    """The low two E4M3 bytes -> the factors of their blocks, a word of two."""
    if not is_bf16:
        return fp16.scale_pair(word)
    lines = [
        ".reg .b32 t, first, second;",
        "prmt.b32 t, $1, 0, 0x4140;",
        "shl.b32 t, t, 4;",
        f"mov.b32 first, {_UP[0]};",
        f"mov.b32 second, {_UP[1]};",
        "mul.rn.bf16x2 t, t, first;",
        "mul.rn.bf16x2 $0, t, second;",
    ]
    return _asm(lines, [word], 1)[0]


def unpack_pairs(word: Any, factor: Any, odd: int, *, is_bf16: bool) -> tuple[Any, Any]:
    """Four of eight codes times one factor -> two pairs, each times 2^-7. ``odd`` 0: (n0, n4), (n2, n6); 1: (n1, n5),
    (n3, n7). Volatile, so that it stays between the wgmma that it is written between.
    """
    if not is_bf16:
        return fp16.unpack_pairs(word, factor, odd, pinned=True)
    lines = [".reg .b32 t, u;"]
    for i, (magnitude, sign) in enumerate(_SHIFTS[odd]):
        lines += [
            f"{_shift('t', magnitude)}",
            f"and.b32 t, t, {_MAGNITUDE};",
            f"{_shift('u', sign)}",
            f"lop3.b32 t, u, {_SIGN}, t, 0xEA;",
            f"mul.rn.bf16x2 ${i}, t, $3;",
        ]
    first, second = _asm(lines, [word, factor], 2, effects=True)
    return first, second


def _shift(target: str, left: int) -> str:
    if left >= 0:
        return f"shl.b32 {target}, $2, {left};"
    return f"shr.b32 {target}, $2, {-left};"


def _asm(lines: list[str], operands: list[Any], results: int, *, effects: bool = False) -> list[Any]:
    """Inline PTX on 32-bit registers: results first, then operands."""
    i32 = ir.IntegerType.get_signless(32)
    text = "\n".join(["{", *lines, "}"])
    constraints = ",".join(["=r"] * results + ["r"] * len(operands))
    kind = i32 if results == 1 else ir.Type.parse(f"!llvm.struct<({', '.join(['i32'] * results)})>")
    values = [operand.ir_value() for operand in operands]
    value = llvm.inline_asm(kind, values, text, constraints, has_side_effects=effects, asm_dialect=0)
    if results == 1:
        return [Uint32(value)]
    return [Uint32(llvm.extractvalue(i32, value, [index])) for index in range(results)]
