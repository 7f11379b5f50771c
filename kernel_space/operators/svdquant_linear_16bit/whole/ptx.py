"""PTX of the kernel ``whole`` beside that of ``narrow``."""

from typing import Any

from kernel_space.operators.nvfp4_quantize.parts.ptx import inline

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


def store_four(address: Any, values: Any) -> None:
    """Four fp32 to a 16-byte aligned shared address."""
    operands = [("f", value) for value in values]
    inline("st.shared.v4.f32 [$0], {$1, $2, $3, $4};", "", ("r", address), *operands, effects=True)
