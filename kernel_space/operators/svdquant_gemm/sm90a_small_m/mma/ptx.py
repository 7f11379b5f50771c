"""PTX that the small-M kernel of sm_90a needs beside ``dequant_sm90a``: per-lane copies, mma.sync, cluster stores."""

import struct
from typing import Any

from cutlass import Float32, Int32, Int64, Uint32
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm

_RESULTS = {"r": Uint32, "f": Float32}


def copy_async(target: Any, source: Any, size: Any, count: int) -> None:
    """``count`` bytes (4, 8 or 16) from global ``source`` (Int64) to shared ``target`` (Int32), by this lane.

    ``size``: Int32, 0 or ``count``; 0 reads nothing and writes zeros. 16 bytes bypass L1 and fetch the rest of their
    128-byte line into L2, which the same warp asks for next.
    """
    kind = "cg.shared.global.L2::128B" if count == 16 else "ca.shared.global"
    _asm(f"cp.async.{kind} [$0], [$1], {count}, $2;", "", ("r", target), ("l", source), ("r", size))


def mma_16x8x16(acc: Any, a: Any, b: Any, is_bf16: bool) -> None:
    """``acc`` (4 fp32 of an rmem tensor) += a (four words) x b (two words): 16 rows, 8 columns, 16 of K."""
    kind = "bf16" if is_bf16 else "f16"
    text = (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {{$0, $1, $2, $3}}, {{$4, $5, $6, $7}}, "
        "{$8, $9}, {$10, $11, $12, $13};"
    )
    words = [("r", word) for word in (*a, *b)]
    sums = [(str(i), acc[i]) for i in range(4)]
    for i, value in enumerate(_asm(text, "ffff", *words, *sums, effects=False)):
        acc[i] = value


def map_to_rank(address: Any, rank: Any) -> Any:
    """The address of this CTA's shared byte ``address`` in CTA ``rank`` of the cluster."""
    return Int32(
        _asm("mapa.shared::cluster.u32 $0, $1, $2;", "r", ("r", address), ("r", rank), effects=False)[0]
    )


def arrive_if(barrier: Any, wanted: Any) -> None:
    """Arrive at an mbarrier of this CTA if ``wanted``. Without a branch: around those ptxas serializes wgmma."""
    text = "{\n.reg .pred p;\n.reg .b64 s;\nsetp.ne.b32 p, $1, 0;\n@p mbarrier.arrive.shared.b64 s, [$0];\n}"
    _asm(text, "", ("r", barrier.toint()), ("r", Int32(wanted)))


def store_async(address: Any, values: Any, barrier: Any) -> None:
    """Four fp32 to a 16-byte aligned address of the cluster's shared memory; ``barrier``, there, counts 16 bytes."""
    kind = "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32"
    operands = [("f", value) for value in values]
    _asm(f"{kind} [$0], {{$1, $2, $3, $4}}, [$5];", "", ("r", address), *operands, ("r", barrier))


def store_async_if(address: Any, values: Any, barrier: Any, wanted: Any) -> None:
    """``store_async``, unless ``wanted`` is false."""
    kind = "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32"
    text = f"{{\n.reg .pred p;\nsetp.ne.b32 p, $6, 0;\n@p {kind} [$0], {{$1, $2, $3, $4}}, [$5];\n}}"
    operands = [("f", value) for value in values]
    _asm(text, "", ("r", address), *operands, ("r", barrier), ("r", Int32(wanted)))


def store_shared_f32(address: Any, value: Any) -> None:
    _asm("st.shared.f32 [$0], $1;", "", ("r", address), ("f", value))


def load_shared_f32(address: Any) -> tuple[Any, ...]:
    """Four fp32 from a 16-byte aligned shared address."""
    return _asm("ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];", "ffff", ("r", address))


def store_global(address: Any, words: Any) -> None:
    """Two 32-bit words to an 8-byte aligned global address (Int64)."""
    _asm("st.global.v2.b32 [$0], {$1, $2};", "", ("l", address), ("r", words[0]), ("r", words[1]))


def store_global_halves(address: Any, distance: int, word: Any, wanted: Any) -> None:
    """The halves of ``word`` to a global address and ``distance`` bytes after it, each only if ``wanted``."""
    text = (
        "{\n.reg .pred p, q;\n.reg .b16 l, h;\nmov.b32 {l, h}, $1;\nsetp.ne.b32 p, $2, 0;\nsetp.ne.b32 q, $3, 0;\n"
        f"@p st.global.b16 [$0], l;\n@q st.global.b16 [$0+{distance}], h;\n}}"
    )
    _asm(text, "", ("l", Int64(address)), ("r", word), *(("r", Int32(one)) for one in wanted))


def store_global_word(address: Any, word: Any, wanted: Any) -> None:
    """A 32-bit word to a 4-byte aligned global address, if ``wanted``."""
    text = "{\n.reg .pred p;\nsetp.ne.b32 p, $2, 0;\n@p st.global.b32 [$0], $1;\n}"
    _asm(text, "", ("l", Int64(address)), ("r", word), ("r", Int32(wanted)))


def multiply_bits(word: Any, factor: float) -> Any:
    """An fp32 number in a 32-bit word, times ``factor``, likewise."""
    bits = struct.pack(">f", factor).hex().upper()
    text = f"{{\n.reg .f32 f;\nmov.b32 f, $1;\nmul.rn.f32 f, f, 0f{bits};\nmov.b32 $0, f;\n}}"
    return _asm(text, "r", ("r", word), effects=False)[0]


def _asm(text: str, results: str, *operands: tuple[str, Any], effects: bool = True) -> tuple[Any, ...]:
    """Inline PTX: register kinds of the results, then (constraint, value) of the operands."""
    kinds = {"r": ir.IntegerType.get_signless(32), "f": ir.F32Type.get()}
    types = [kinds[letter] for letter in results]
    values = [value.ir_value() for _, value in operands]
    constraints = ",".join([f"={letter}" for letter in results] + [letter for letter, _ in operands])
    if not types:
        llvm.inline_asm(None, values, text, constraints, has_side_effects=True, asm_dialect=0)
        return ()
    kind = types[0] if len(types) == 1 else ir.Type.parse(f"!llvm.struct<({', '.join(map(str, types))})>")
    value = llvm.inline_asm(kind, values, text, constraints, has_side_effects=effects, asm_dialect=0)
    if len(types) == 1:
        return (_RESULTS[results](value),)
    return tuple(
        _RESULTS[letter](llvm.extractvalue(types[i], value, [i])) for i, letter in enumerate(results)
    )
