"""PTX of the kernel ``whole`` beside that of ``narrow``."""

from typing import Any

from cutlass import Int32, Int64

from kernel_space.operators.nvfp4_quantize.parts.ptx import inline

TAG = 1  # of a word that is there, where there was zero

_INVERSE = """{
.reg .pred p;
.reg .f32 a;
rcp.rn.f32 a, $1;
setp.gt.f32 p, $1, 0f00000000;
selp.f32 $0, a, 0f00000000, p;
}"""


def inverse(value: Any) -> Any:
    """``1 / value`` of a positive fp32 number, rounded to nearest even; of 0, which stands beyond K, 0."""
    return inline(_INVERSE, "f", ("f", value))[0]


def round_pair(low: Any, high: Any, *, is_bf16: bool) -> Any:
    """Two fp32 numbers as 16-bit ones in a word, to nearest even."""
    kind = "bf16x2" if is_bf16 else "f16x2"
    return inline(f"cvt.rn.{kind}.f32 $0, $2, $1;", "r", ("f", low), ("f", high))[0]


def store_tagged(address: Any, words: Any, wanted: Any) -> None:
    """Two 32-bit words to a 16-byte aligned global address, each with ``TAG`` behind it, in a store of 8 bytes that no
    load sees a part of; if ``wanted``.
    """
    text = f"""{{
.reg .pred p;
.reg .b64 a, b;
setp.ne.b32 p, $1, 0;
mov.b64 a, {{$2, {TAG}}};
mov.b64 b, {{$3, {TAG}}};
@p st.relaxed.gpu.global.v2.b64 [$0], {{a, b}};
}}"""
    operands = [("l", Int64(address)), ("r", Int32(wanted)), *(("r", word) for word in words)]
    inline(text, "", *operands, effects=True)


def clear_tagged(address: Any) -> None:
    """Two words of ``store_tagged`` and what is behind them to zero. As strong as that: who has seen them may come by
    loads that order nothing but these words.
    """
    text = "{\n.reg .b64 a;\nmov.b64 a, 0;\nst.relaxed.gpu.global.v2.b64 [$0], {a, a};\n}"
    inline(text, "", ("l", Int64(address)), effects=True)


def load_tagged(address: Any, wanted: Any) -> tuple[Any, ...]:
    """Four words of ``store_tagged``, 32 bytes, and 1 if all of them are there; zeros and 1 if not ``wanted``."""
    text = f"""{{
.reg .pred p;
.reg .b64 a, b, c, d;
.reg .b32 s, t, u, v;
setp.ne.b32 p, $6, 0;
mov.b64 a, {TAG << 32:#x};
mov.b64 b, a;
mov.b64 c, a;
mov.b64 d, a;
@p ld.relaxed.gpu.global.v2.b64 {{a, b}}, [$5];
@p ld.relaxed.gpu.global.v2.b64 {{c, d}}, [$5+16];
mov.b64 {{$0, s}}, a;
mov.b64 {{$1, t}}, b;
mov.b64 {{$2, u}}, c;
mov.b64 {{$3, v}}, d;
and.b32 s, s, t;
and.b32 u, u, v;
and.b32 $4, s, u;
}}"""
    return inline(text, "rrrrr", ("l", Int64(address)), ("r", Int32(wanted)), effects=True)


def rest() -> None:
    """Between two looks at a counter: up to some 60 ns, in which other warps of the SM do not wait for this one."""
    inline("nanosleep.u32 32;", "", effects=True)
