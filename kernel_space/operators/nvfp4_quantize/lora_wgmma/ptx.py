"""Instructions of ``lora_wgmma`` that neither the DSL nor ``lora_mma`` has an operation for. None of them branches:
around branches ptxas serializes wgmma.
"""

from typing import Any

from cutlass import Int32, Int64

from kernel_space.operators.nvfp4_quantize.parts.ptx import inline


def copy_async_if(target: Any, source: Any, there: Any, wanted: Any) -> None:
    """16 bytes from global ``source`` to shared ``target`` if ``wanted``; zeros, without a read, unless ``there``."""
    text = (
        "{\n.reg .pred p, q;\n.reg .b32 n;\nsetp.ne.b32 p, $2, 0;\nsetp.ne.b32 q, $3, 0;\nselp.b32 n, 16, 0, p;\n"
        "@q cp.async.cg.shared.global [$0], [$1], 16, n;\n}"
    )
    operands = (("r", Int32(target)), ("l", Int64(source)), ("r", Int32(there)), ("r", Int32(wanted)))
    inline(text, "", *operands, effects=True)


def load_words(address: Any) -> tuple[Any, ...]:
    """Four 32-bit words from a 16-byte aligned shared address."""
    return inline("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", "rrrr", ("r", address), effects=True)


def arrive_if(barrier: Any, wanted: Any) -> None:
    """Arrive at an mbarrier of this CTA if ``wanted``."""
    text = "{\n.reg .pred p;\n.reg .b64 s;\nsetp.ne.b32 p, $1, 0;\n@p mbarrier.arrive.shared.b64 s, [$0];\n}"
    inline(text, "", ("r", barrier.toint()), ("r", Int32(wanted)), effects=True)


def store_pair_if(address: Any, low: Any, high: Any, wanted: Any, *, is_bf16: bool) -> None:
    """Two fp32 numbers rounded to 16 bits to a 4-byte aligned global address, if ``wanted``."""
    kind = "bf16x2" if is_bf16 else "f16x2"
    text = (
        f"{{\n.reg .pred p;\n.reg .b32 w;\nsetp.ne.b32 p, $3, 0;\ncvt.rn.{kind}.f32 w, $2, $1;\n"
        "@p st.global.b32 [$0], w;\n}"
    )
    inline(text, "", ("l", Int64(address)), ("f", low), ("f", high), ("r", Int32(wanted)), effects=True)
