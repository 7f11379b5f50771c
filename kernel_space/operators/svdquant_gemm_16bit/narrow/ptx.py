"""PTX of the kernel ``narrow`` beside that of ``sm90a_small_m`` and ``dequant``."""

from typing import Any

from cutlass import Uint32
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm

from kernel_space.operators.svdquant_gemm.sm90a_parts import dequant as fp16

# Pairs (n_i, n_(i+4)) in the order of their chunks, i = 0, 2, 1, 3, as bf16: ``docs/kernel_16bit.md``, "Exactness". One
# product puts two copies of a code in place, its sign and bits eem, which do not meet. Integer products go to another
# pipe than logic and shifts, which run at half rate: nine of these make eight codes.
_PAIR = """and.b32 v, {word}, {code};
mul.lo.u32 v, v, {places};
and.b32 v, v, 0x81C081C0;
mul.rn.bf16x2 ${out}, v, $5;
"""
_LOW, _HIGH = ("0x000F000F", "0x1040"), ("0x00F000F0", "0x0104")
_BF16_PAIRS = "shr.b32 t, $4, 8;\n" + "".join(
    _PAIR.format(out=out, word=word, code=code, places=places)
    for out, word, (code, places) in ((0, "$4", _LOW), (1, "t", _LOW), (2, "$4", _HIGH), (3, "t", _HIGH))
)


def unpack_word(word: Any, factor: Any, *, is_bf16: bool) -> tuple[Any, ...]:
    """Eight codes times one factor, in both halves of a word -> the pairs of four chunks, each times 2^-7."""
    if not is_bf16:
        return (*fp16.unpack_pairs(word, factor, 0), *fp16.unpack_pairs(word, factor, 1))
    return _four("{\n.reg .b32 t, v;\n" + _BF16_PAIRS + "}", [word, factor], effects=False)


def load_matrices(address: Any) -> tuple[Any, ...]:
    """``ldmatrix`` of four 8 x 8 matrices of 16-bit elements: lane 8 i + r has the address of row r of matrix i; lane
    4 r + t gets elements 2 t and 2 t + 1 of row r of each.
    """
    text = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];"
    return _four(text, [address], effects=True)


def _four(text: str, operands: list[Any], *, effects: bool) -> tuple[Any, ...]:
    """Inline PTX with four 32-bit results, then operands of 32 bits."""
    i32 = ir.IntegerType.get_signless(32)
    constraints = ",".join(["=&r"] * 4 + ["r"] * len(operands))
    values = [operand.ir_value() for operand in operands]
    kind = ir.Type.parse("!llvm.struct<(i32, i32, i32, i32)>")
    value = llvm.inline_asm(kind, values, text, constraints, has_side_effects=effects, asm_dialect=0)
    return tuple(Uint32(llvm.extractvalue(i32, value, [i])) for i in range(4))
