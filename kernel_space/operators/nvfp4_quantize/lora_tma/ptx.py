"""Instructions of ``lora_tma`` that neither the DSL nor ``lora_mma`` has an operation for."""

from typing import Any

from cutlass import Int32, Int64

from kernel_space.operators.nvfp4_quantize.parts.ptx import inline


def map_to_rank(address: Any, rank: Any) -> Any:
    """The address of this CTA's shared byte ``address`` in CTA ``rank`` of the cluster, known at run time or not."""
    return Int32(inline("mapa.shared::cluster.u32 $0, $1, $2;", "r", ("r", address), ("r", Int32(rank)))[0])


def store_async(address: Any, values: Any, barrier: Any) -> None:
    """Four fp32 to a 16-byte aligned address of the cluster's shared memory; ``barrier``, there, counts 16 bytes."""
    kind = "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32"
    operands = [("f", value) for value in values]
    inline(
        f"{kind} [$0], {{$1, $2, $3, $4}}, [$5];", "", ("r", address), *operands, ("r", barrier), effects=True
    )


def store_column_if(address: Any, distance: int, values: Any, wanted: Any, *, is_bf16: bool) -> None:
    """Two fp32 numbers rounded to 16 bits to a global address and ``distance`` bytes behind it, each if ``wanted``."""
    kind = "bf16" if is_bf16 else "f16"
    text = (
        "{\n.reg .pred p, q;\n.reg .b16 u, v;\nsetp.ne.b32 p, $3, 0;\nsetp.ne.b32 q, $4, 0;\n"
        f"cvt.rn.{kind}.f32 u, $1;\ncvt.rn.{kind}.f32 v, $2;\n"
        f"@p st.global.b16 [$0], u;\n@q st.global.b16 [$0+{distance}], v;\n}}"
    )
    operands = [("f", value) for value in values] + [("r", Int32(one)) for one in wanted]
    inline(text, "", ("l", Int64(address)), *operands, effects=True)


def store_halves_if(address: Any, values: Any, wanted: Any, *, is_bf16: bool) -> None:
    """Four fp32 numbers rounded to 16 bits to an 8-byte aligned global address, if ``wanted``."""
    kind = "bf16x2" if is_bf16 else "f16x2"
    text = (
        f"{{\n.reg .pred p;\n.reg .b32 u, v;\nsetp.ne.b32 p, $5, 0;\ncvt.rn.{kind}.f32 u, $2, $1;\n"
        f"cvt.rn.{kind}.f32 v, $4, $3;\n@p st.global.v2.b32 [$0], {{u, v}};\n}}"
    )
    operands = [("f", value) for value in values]
    inline(text, "", ("l", Int64(address)), *operands, ("r", Int32(wanted)), effects=True)


def store_byte_if(address: Any, byte: Any, wanted: Any) -> None:
    """The low 8 bits to a global address, if ``wanted``."""
    text = "{\n.reg .pred p;\nsetp.ne.b32 p, $2, 0;\n@p st.global.b8 [$0], $1;\n}"
    inline(text, "", ("l", Int64(address)), ("r", byte), ("r", Int32(wanted)), effects=True)
