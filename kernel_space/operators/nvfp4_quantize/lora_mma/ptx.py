"""Instructions of ``lora_mma`` that the DSL has no operation for: copies, matrix loads, mma.sync, cluster stores."""

from typing import Any

from cutlass import Int32, Int64

from kernel_space.operators.nvfp4_quantize.parts.ptx import inline


def copy_bulk(target: Any, source: Any, size: int, barrier: Any) -> None:
    """``size`` bytes, a multiple of 16, from global ``source`` to shared ``target``; counted by ``barrier``."""
    kind = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    inline(
        f"{kind} [$0], [$1], {size}, [$2];",
        "",
        ("r", target),
        ("l", Int64(source)),
        ("r", barrier),
        effects=True,
    )


def load_words(address: Any) -> tuple[Any, ...]:
    """Four 32-bit words from a 16-byte aligned shared address."""
    return inline("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", "rrrr", ("r", address), effects=True)


def mma_16x8x16(sums: list[Any], a: list[Any], b: list[Any], *, is_bf16: bool) -> tuple[Any, ...]:
    """Four fp32 sums + a (four words) x b (two words): 16 rows, 8 columns, 16 of K."""
    kind = "bf16" if is_bf16 else "f16"
    text = (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {{$0, $1, $2, $3}}, {{$4, $5, $6, $7}}, "
        "{$8, $9}, {$10, $11, $12, $13};"
    )
    words, before = [("r", word) for word in (*a, *b)], [(str(i), one) for i, one in enumerate(sums)]
    return inline(text, "ffff", *words, *before, early=False)


def gather_bytes(a: Any, b: Any, choice: Any) -> Any:
    """Four of the eight bytes of a (0..3) and b (4..7), by the nibbles of ``choice``."""
    return inline("prmt.b32 $0, $1, $2, $3;", "r", ("r", a), ("r", b), ("r", choice))[0]


def load_shared(address: Any) -> tuple[Any, ...]:
    """Four fp32 from a 16-byte aligned shared address."""
    return inline("ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];", "ffff", ("r", address), effects=True)


def store_shared(address: Any, values: list[Any]) -> None:
    """Two or four fp32 to a shared address that is a multiple of their size."""
    names = ", ".join(f"${i + 1}" for i in range(len(values)))
    text = f"st.shared.v{len(values)}.f32 [$0], {{{names}}};"
    inline(text, "", ("r", address), *(("f", value) for value in values), effects=True)


def map_to_rank(address: Any, rank: int) -> Any:
    """The address of this CTA's shared byte ``address`` in CTA ``rank`` of the cluster."""
    text = f"mapa.shared::cluster.u32 $0, $1, {rank};"
    return Int32(inline(text, "r", ("r", address))[0])


def store_cluster(address: Any, values: list[Any]) -> None:
    """Four fp32 to a 16-byte aligned address of the cluster's shared memory."""
    text = "st.shared::cluster.v4.f32 [$0], {$1, $2, $3, $4};"
    inline(text, "", ("r", address), *(("f", value) for value in values), effects=True)


def store_halves_if(address: Any, distance: int, values: Any, wanted: Any, *, is_bf16: bool) -> None:
    """Two fp32 numbers rounded to 16 bits to a global address and ``distance`` bytes after it, if ``wanted``."""
    kind = "bf16" if is_bf16 else "f16"
    text = (
        "{\n.reg .pred p;\n.reg .b16 a, b;\nsetp.ne.b32 p, $3, 0;\n"
        f"cvt.rn.{kind}.f32 a, $1;\ncvt.rn.{kind}.f32 b, $2;\n"
        f"@p st.global.b16 [$0], a;\n@p st.global.b16 [$0+{distance}], b;\n}}"
    )
    operands = (*(("f", value) for value in values), ("r", Int32(wanted)))
    inline(text, "", ("l", Int64(address)), *operands, effects=True)


def load_row_if(address: Any, wanted: Any, before: list[Any]) -> tuple[Any, ...]:
    """Eight 32-bit words at a 16-byte aligned global address, or ``before`` without a load."""
    words: tuple[Any, ...] = ()
    for i in (0, 4):
        text = (
            "{\n.reg .pred p;\nsetp.ne.b32 p, $5, 0;\n"
            f"@p ld.global.v4.b32 {{$0, $1, $2, $3}}, [$4+{4 * i}];\n}}"
        )
        tied = [(str(n), word) for n, word in enumerate(before[i : i + 4])]
        operands = (("l", Int64(address)), ("r", Int32(wanted)), *tied)
        words += inline(text, "rrrr", *operands, effects=True, early=False)
    return words


def prefetch_if(address: Any, wanted: Any) -> None:
    """The line of a global address to L2."""
    text = "{\n.reg .pred p;\nsetp.ne.b32 p, $1, 0;\n@p prefetch.global.L2 [$0];\n}"
    inline(text, "", ("l", Int64(address)), ("r", Int32(wanted)), effects=True)


def load_pair(address: Any) -> tuple[Any, ...]:
    """Two fp32 at an 8-byte aligned global address."""
    return inline("ld.global.v2.f32 {$0, $1}, [$2];", "ff", ("l", Int64(address)), effects=True)
