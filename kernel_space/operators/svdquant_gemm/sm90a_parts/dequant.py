"""Exact E2M1 x E4M3 -> fp16 on CUDA cores, and the shared-memory accesses around it.

A word holds eight codes n0..n7, low nibble first. Bits ``eem`` of a code, put at bits 11..9 of an fp16 number, are
``code * 2^-14`` (subnormals included: exponent field 0 of both formats means the same). One multiplication by
``scale * 2^7`` gives ``code * scale * 2^-7``: at most 6 significant bits, multiples of 2^-17 up to 21, so exact.
The factor 2^14 that both operands together lack is given back in the epilogue.
"""

from typing import Any

from cutlass import Int32, Int64, Uint32
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm

from kernel_space.operators.svdquant_gemm.parts import activation as activations

DEQUANT_SHIFT = 7  # dequantized operands are smaller than their values by 2^-DEQUANT_SHIFT
FROM_DEQUANT_SCALE = 2.0 ** (-2 * DEQUANT_SHIFT)
SCALE_FACTOR = "0x58005800"  # two fp16 2^DEQUANT_SHIFT

# Codes of even nibbles become the bytes s 000 e e m 0, the high byte of an fp16 number; bytes 0 and 2 (prmt) or 1 and
# 3 (mask) then make the pairs (n0, n4) and (n2, n6). Odd nibbles likewise: (n1, n5) and (n3, n7).
_EVEN = """shl.b32 t, WORD, 1;
and.b32 t, t, 0x0E0E0E0E;
shl.b32 u, WORD, 4;
lop3.b32 b, u, 0x80808080, t, 0xEA;
"""
_ODD = """shr.b32 t, WORD, 3;
and.b32 t, t, 0x0E0E0E0E;
lop3.b32 b, WORD, 0x80808080, t, 0xEA;
"""
_PAIRS = """prmt.b32 p, b, 0, 0x2404;
and.b32 q, b, 0xFF00FF00;
mul.rn.f16x2 OUT0, p, FACTOR;
mul.rn.f16x2 OUT1, q, FACTOR;
"""
_DECLARE = "{\n.reg .b32 b, t, u, p, q;\n"
_DECLARE_PAIR = "{\n.reg .b32 b, t, u, p, q, s;\nprmt.b32 s, FACTORS, 0, SELECTOR;\n"
_SELECTORS = ("0x1010", "0x3232")


def broadcast_factor(factors: Any, half: Any) -> Any:
    """One of two factors (``half`` 0 or 1, known when compiling or not) in both halves of a word."""
    if isinstance(half, int):
        return _call(f"prmt.b32 $0, $1, 0, {_SELECTORS[half]};", [factors], 1)[0]
    return _call("prmt.b32 $0, $1, 0, $2;", [factors, half * Int32(0x2222) + Int32(0x1010)], 1)[0]


def unpack_half(word: Any, factors: Any, half: int, odd: int) -> tuple[Any, Any]:
    """Four of eight codes times one scale -> two fp16 pairs, each times 2^-DEQUANT_SHIFT.

    ``odd`` 0: (n0, n4), (n2, n6); 1: (n1, n5), (n3, n7). ``factors`` holds two factors as ``scale_pairs`` gives them;
    ``half`` says which one. Volatile, so that it stays between the wgmma that it is written between.
    """
    text = _DECLARE_PAIR + (_ODD if odd else _EVEN) + _PAIRS.replace("FACTOR", "s") + "}"
    text = text.replace("OUT0", "$0").replace("OUT1", "$1").replace("WORD", "$2").replace("FACTORS", "$3")
    return _call(text.replace("SELECTOR", _SELECTORS[half]), [word, factors], 2, effects=True)


def unpack_word(word: Any, factors: Any, half: int) -> tuple[Any, Any, Any, Any]:
    """``unpack_half`` of even nibbles, then of odd ones, free to be moved."""
    pairs = _PAIRS.replace("FACTOR", "s")
    pieces = [_EVEN + pairs.replace("OUT0", "$0").replace("OUT1", "$1")]
    pieces.append(_ODD + pairs.replace("OUT0", "$2").replace("OUT1", "$3"))
    text = (_DECLARE_PAIR + "".join(pieces) + "}").replace("WORD", "$4").replace("FACTORS", "$5")
    return _call(text.replace("SELECTOR", _SELECTORS[half]), [word, factors], 4)


def unpack_pairs(word: Any, factor: Any, odd: int, *, pinned: bool = False) -> tuple[Any, Any]:
    """``unpack_half`` with a factor that ``broadcast_factor`` made; volatile only if ``pinned``."""
    text = _DECLARE + (_ODD if odd else _EVEN) + _PAIRS + "}"
    text = text.replace("OUT0", "$0").replace("OUT1", "$1").replace("WORD", "$2").replace("FACTOR", "$3")
    return _call(text, [word, factor], 2, effects=pinned)


def pair_of_word(word: Any, shift: Any, factor: Any) -> Any:
    """The pair (n_i, n_(i+4)) of a word of eight codes times ``factor``; ``shift`` = 4i, known at run time."""
    text = (
        "{\n.reg .b32 v, s, t;\nshr.b32 v, $1, $2;\nand.b32 t, v, 0x00070007;\nshl.b32 t, t, 9;\n"
        "and.b32 s, v, 0x00080008;\nshl.b32 s, s, 12;\nor.b32 t, t, s;\nmul.rn.f16x2 $0, t, $3;\n}"
    )
    return _call(text, [word, shift, factor], 1)[0]


def gather_bytes(low: Any, high: Any, selector: Any) -> Any:
    """Four of eight bytes; nibble i of ``selector`` names byte i of the result."""
    return _call("prmt.b32 $0, $1, $2, $3;", [low, high, selector], 1)[0]


def scale_pairs(word: Any) -> tuple[Any, Any]:
    """Four E4M3 bytes -> two words of two fp16 ``scale * 2^DEQUANT_SHIFT``: bytes (0, 1) and (2, 3)."""
    text = (
        "{\n.reg .b16 l, h;\n.reg .b32 p, q, f;\nmov.b32 {l, h}, $2;\ncvt.rn.f16x2.e4m3x2 p, l;\n"
        f"cvt.rn.f16x2.e4m3x2 q, h;\nmov.b32 f, {SCALE_FACTOR};\n"
        "mul.rn.f16x2 $0, p, f;\nmul.rn.f16x2 $1, q, f;\n}"
    )
    return _call(text, [word], 2)


def scale_pair(word: Any) -> Any:
    """The low two E4M3 bytes -> one word of two fp16 ``scale * 2^DEQUANT_SHIFT``."""
    text = (
        "{\n.reg .b16 l, h;\n.reg .b32 p, f;\nmov.b32 {l, h}, $1;\ncvt.rn.f16x2.e4m3x2 p, l;\n"
        f"mov.b32 f, {SCALE_FACTOR};\nmul.rn.f16x2 $0, p, f;\n}}"
    )
    return _call(text, [word], 1)[0]


def finish_pair(
    low: Any, high: Any, scales: Any, biases: Any, is_bf16: bool, activation: str = "none"
) -> Any:
    """Two fp32 accumulators -> ``x * scale + bias`` and the activation of that, each rounded once to 16 bits, as one
    word. ``scales`` and ``biases`` are two 32-bit words each, as ``load_shared`` gives them.
    """
    kind = "bf16x2" if is_bf16 else "f16x2"
    declare, activate = "", ""
    if activation != "none":
        declare, activate = activations.DECLARE, activations.of_pair(activation)
    text = (
        "{\n.reg .f32 l, h, s0, s1, b0, b1;\n"
        + declare
        + "mov.b32 s0, $3;\nmov.b32 s1, $4;\nmov.b32 b0, $5;\n"
        "mov.b32 b1, $6;\nfma.rn.f32 l, $1, s0, b0;\nfma.rn.f32 h, $2, s1, b1;\n"
        f"{activate}cvt.rn.{kind}.f32 $0, h, l;\n}}"
    )
    operands = [value.ir_value() for value in (low, high, *scales, *biases)]
    word = llvm.inline_asm(
        ir.IntegerType.get_signless(32),
        operands,
        text,
        "=r,f,f,r,r,r,r",
        has_side_effects=False,
        asm_dialect=0,
    )
    return Uint32(word)


def finish_gated_pair(
    gates: Any, ups: Any, affine_of_gates: tuple[Any, Any], affine_of_ups: tuple[Any, Any], is_bf16: bool
) -> Any:
    """Two accumulators of gates and two of what they are for -> ``silu(gate) * up``, each rounded once, as one word.

    The affine operands are (scales, biases) as of ``finish_pair``.
    """
    kind = "bf16x2" if is_bf16 else "f16x2"
    names = ("s0", "s1", "b0", "b1", "u0", "u1", "c0", "c1")
    text = "{\n.reg .f32 l, h, v, w, " + ", ".join(names) + ";\n" + activations.DECLARE
    text += "".join(f"mov.b32 {name}, ${number + 5};\n" for number, name in enumerate(names))
    text += (
        "fma.rn.f32 l, $1, s0, b0;\nfma.rn.f32 h, $2, s1, b1;\n"
        "fma.rn.f32 v, $3, u0, c0;\nfma.rn.f32 w, $4, u1, c1;\n"
        f"{activations.of_pair(activations.SWIGLU)}mul.rn.f32 l, l, v;\nmul.rn.f32 h, h, w;\n"
        f"cvt.rn.{kind}.f32 $0, h, l;\n}}"
    )
    words = [word for affine in (affine_of_gates, affine_of_ups) for pair in affine for word in pair]
    word = llvm.inline_asm(
        ir.IntegerType.get_signless(32),
        [value.ir_value() for value in (*gates, *ups, *words)],
        text,
        "=r,f,f,f,f," + ",".join(["r"] * 8),
        has_side_effects=False,
        asm_dialect=0,
    )
    return Uint32(word)


def load_shared(address: Any, words: int) -> tuple[Any, ...]:
    """1, 2 or 4 consecutive 32-bit words at a shared-memory byte address."""
    if words == 1:
        return _call("ld.shared.b32 $0, [$1];", [address], 1, effects=True)
    outputs = ", ".join(f"${i}" for i in range(words))
    return _call(f"ld.shared.v{words}.b32 {{{outputs}}}, [${words}];", [address], words, effects=True)


def load_shared_u16(address: Any) -> Any:
    """16 bits at a shared-memory byte address, zero-extended."""
    text = "{\n.reg .b16 h;\nld.shared.b16 h, [$1];\ncvt.u32.u16 $0, h;\n}"
    return _call(text, [address], 1, effects=True)[0]


def store_shared(address: Any, words: Any) -> None:
    """One or four 32-bit words to a shared-memory byte address that is a multiple of their size."""
    if len(words) == 1:
        _call("st.shared.b32 [$0], $1;", [address, *words], 0, effects=True)
    else:
        _call("st.shared.v4.b32 [$0], {$1, $2, $3, $4};", [address, *words], 0, effects=True)


def store_matrices(address: Any, words: Any, transpose: bool) -> None:
    """stmatrix of two or four 8x8 matrices of 16-bit elements; each lane gives the address of one row."""
    kind = ".trans" if transpose else ""
    values = ", ".join(f"${i + 1}" for i in range(len(words)))
    text = f"stmatrix.sync.aligned.m8n8.x{len(words)}{kind}.shared.b16 [$0], {{{values}}};"
    _call(text, [address, *words], 0, effects=True)


def load_global_if(address: Any, wanted: Any) -> Any:
    """One 32-bit word at a 64-bit global address, or 0 without a load when ``wanted`` is false."""
    text = "{\n.reg .pred p;\nsetp.ne.b32 p, $2, 0;\nmov.b32 $0, 0;\n@p ld.global.b32 $0, [$1];\n}"
    i32 = ir.IntegerType.get_signless(32)
    operands = [Int64(address).ir_value(), Int32(wanted).ir_value()]
    return Uint32(llvm.inline_asm(i32, operands, text, "=&r,l,r", has_side_effects=True, asm_dialect=0))


def load_global_pair_if(address: Any, wanted: Any) -> tuple[Any, Any]:
    """Two 32-bit words at an 8-byte aligned global address, or zeros without a load when ``wanted`` is false."""
    text = (
        "{\n.reg .pred p;\nsetp.ne.b32 p, $3, 0;\nmov.b32 $0, 0;\nmov.b32 $1, 0;\n"
        "@p ld.global.v2.b32 {$0, $1}, [$2];\n}"
    )
    i32 = ir.IntegerType.get_signless(32)
    operands = [Int64(address).ir_value(), Int32(wanted).ir_value()]
    kind = ir.Type.parse("!llvm.struct<(i32, i32)>")
    pair = llvm.inline_asm(kind, operands, text, "=&r,=&r,l,r", has_side_effects=True, asm_dialect=0)
    return Uint32(llvm.extractvalue(i32, pair, [0])), Uint32(llvm.extractvalue(i32, pair, [1]))


def prefetch_global_if(address: Any, wanted: Any) -> None:
    """Bring the sector of a 64-bit global address into the L2, unless ``wanted`` is false: a hint without a result."""
    text = "{\n.reg .pred p;\nsetp.ne.b32 p, $1, 0;\n@p prefetch.global.L2 [$0];\n}"
    operands = [Int64(address).ir_value(), Int32(wanted).ir_value()]
    llvm.inline_asm(None, operands, text, "l,r", has_side_effects=True, asm_dialect=0)


def store_global_if(address: Any, words: Any, wanted: Any) -> None:
    """``store_global``, unless ``wanted`` is false."""
    operands = [Int64(address).ir_value(), *(word.ir_value() for word in words), Int32(wanted).ir_value()]
    text = "{\n.reg .pred p;\nsetp.ne.b32 p, $5, 0;\n@p st.global.v4.b32 [$0], {$1, $2, $3, $4};\n}"
    llvm.inline_asm(None, operands, text, "l,r,r,r,r,r", has_side_effects=True, asm_dialect=0)


def store_global(address: Any, words: Any) -> None:
    """Four 32-bit words to a 64-bit global address that is a multiple of 16."""
    operands = [Int64(address).ir_value(), *(word.ir_value() for word in words)]
    text = "st.global.v4.b32 [$0], {$1, $2, $3, $4};"
    llvm.inline_asm(None, operands, text, "l,r,r,r,r", has_side_effects=True, asm_dialect=0)


def load_acquire(address: Any) -> Any:
    """A 32-bit word at a 64-bit global address; what its writer released is visible afterwards."""
    i32 = ir.IntegerType.get_signless(32)
    operands = [Int64(address).ir_value()]
    text = "ld.acquire.gpu.global.b32 $0, [$1];"
    return Int32(llvm.inline_asm(i32, operands, text, "=r,l,~{memory}", has_side_effects=True, asm_dialect=0))


def store_release(address: Any, word: Any) -> None:
    """A 32-bit word to a 64-bit global address, after everything this thread did or saw before."""
    _store_word("release", address, word)


def store_relaxed(address: Any, word: Any) -> None:
    """A 32-bit word to a 64-bit global address, in no order with what else this thread does."""
    _store_word("relaxed", address, word)


def _store_word(order: str, address: Any, word: Any) -> None:
    operands = [Int64(address).ir_value(), Int32(word).ir_value()]
    text = f"st.{order}.gpu.global.b32 [$0], $1;"
    llvm.inline_asm(None, operands, text, "l,r,~{memory}", has_side_effects=True, asm_dialect=0)


def _call(text: str, operands: list[Any], results: int, *, effects: bool = False) -> tuple[Any, ...]:
    """Inline PTX on 32-bit registers: results first, then operands."""
    i32 = ir.IntegerType.get_signless(32)
    values = [operand.ir_value() for operand in operands]
    constraints = ",".join(["=r"] * results + ["r"] * len(operands))
    if results == 0:
        llvm.inline_asm(None, values, text, constraints, has_side_effects=True, asm_dialect=0)
        return ()
    kind = i32 if results == 1 else ir.Type.parse(f"!llvm.struct<({', '.join(['i32'] * results)})>")
    value = llvm.inline_asm(kind, values, text, constraints, has_side_effects=effects, asm_dialect=0)
    if results == 1:
        return (Uint32(value),)
    return tuple(Uint32(llvm.extractvalue(i32, value, [index])) for index in range(results))
