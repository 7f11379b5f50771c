"""Instructions of ``lora_tma`` that neither the DSL nor ``lora_mma`` has an operation for."""

from typing import Any

from cutlass import Int32, Int64

from kernel_space.operators.nvfp4_quantize.parts.ptx import inline


def store_one_if(address: Any, value: Any, wanted: Any) -> None:
    """One fp32 to a shared address, if ``wanted``."""
    text = "{\n.reg .pred p;\nsetp.ne.b32 p, $2, 0;\n@p st.shared.f32 [$0], $1;\n}"
    inline(text, "", ("r", address), ("f", value), ("r", wanted), effects=True)


def map_to_rank(address: Any, rank: Any) -> Any:
    """The address of this CTA's shared byte ``address`` in CTA ``rank`` of the cluster, known at run time or not."""
    return Int32(inline("mapa.shared::cluster.u32 $0, $1, $2;", "r", ("r", address), ("r", Int32(rank)))[0])


def load_cluster(address: Any) -> tuple[Any, ...]:
    """Four fp32 from a 16-byte aligned address of the cluster's shared memory."""
    text = "ld.shared::cluster.v4.f32 {$0, $1, $2, $3}, [$4];"
    return inline(text, "ffff", ("r", address), effects=True)


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
