"""Instructions of ``lora_tcgen05`` that neither the DSL nor ``lora_tma`` has an operation for."""

from typing import Any

from cutlass import Int32, Int64

from kernel_space.operators.nvfp4_quantize.parts.ptx import inline


def store_cluster_one(address: Any, offset: int, value: Any) -> None:
    """One fp32 so many bytes behind an address of the cluster's shared memory."""
    inline(f"st.shared::cluster.f32 [$0+{offset}], $1;", "", ("r", address), ("f", value), effects=True)


def store_half_below(address: Any, value: Any, row: Any, rows: Any, *, is_bf16: bool) -> None:
    """An fp32 number rounded to 16 bits to a global address, if ``row`` < ``rows``."""
    kind = "bf16" if is_bf16 else "f16"
    text = (
        f"{{\n.reg .pred p;\n.reg .b16 h;\nsetp.lt.s32 p, $2, $3;\ncvt.rn.{kind}.f32 h, $1;\n"
        "@p st.global.b16 [$0], h;\n}"
    )
    inline(text, "", ("l", Int64(address)), ("f", value), ("r", Int32(row)), ("r", Int32(rows)), effects=True)
