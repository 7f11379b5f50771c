"""1 / smooth of four neighbours along K at a time: of kernels that have it beside the weights."""

from typing import Any

import cutlass
from cutlass import Float32, cute

from kernel_space.operators.nvfp4_quantize.parts.ptx import inline, multiply
from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import DEQUANT_SHIFT
from kernel_space.operators.svdquant_linear_16bit.whole.ptx import inverse, round_pair

# As the compiler inverts where the exponent is neither of the lowest nor of the highest: a Newton step rounds right.
_QUICK = """setp.gt.f32 given, {x}, 0f00000000;
selp.f32 v, {x}, 0f3F800000, given;
rcp.approx.ftz.f32 r, v;
neg.f32 e, v;
fma.rn.f32 e, e, r, 0f3F800000;
fma.rn.f32 r, r, e, r;
selp.f32 {out}, r, 0f00000000, given;
mov.b32 t, v;
add.u32 t, t, 0x01800000;
and.b32 t, t, 0x7F800000;
min.u32 ${least}, ${least}, t;
"""
LEAST_EXPONENT = 0x02000000  # of what ``_quick_inverses`` gives last: below it one is not rounded right


@cute.jit
def inverses(given: Any, is_bf16: cutlass.Constexpr) -> Any:
    """2^DEQUANT_SHIFT over four positive fp32 numbers, rounded to fp32, then to 16 bits, as two pairs; of 0, which
    stands beyond K, 0. One after the other, as the compiler inverts, they take three times as long, and everybody
    waits for them.
    """
    a, b, c, d, least = _quick_inverses(given)
    if least < LEAST_EXPONENT:
        a, b, c, d = inverse(given[0]), inverse(given[1]), inverse(given[2]), inverse(given[3])
    values = [multiply(one, Float32(2.0**DEQUANT_SHIFT)) for one in (a, b, c, d)]
    return [round_pair(low, high, is_bf16=is_bf16) for low, high in (values[:2], values[2:])]


@cute.jit
def rounded_inverses(given: Any) -> Any:
    """1 over positive fp32 numbers, rounded to fp32; of 0 0."""
    *found, least = _quick_inverses(given)
    if least < LEAST_EXPONENT:
        found = [inverse(one) for one in given]
    return found


def _quick_inverses(values: Any) -> tuple[Any, ...]:
    """``whole.ptx.inverse`` of some numbers, and by one more whether they are: ``LEAST_EXPONENT`` or more."""
    count = len(values)
    lines = ["{", ".reg .pred given;", ".reg .f32 v, r, e;", ".reg .b32 t;", f"mov.b32 ${count}, 0x7F800000;"]
    lines += [_QUICK.format(x=f"${count + 1 + j}", out=f"${j}", least=count) for j in range(count)]
    return inline("\n".join([*lines, "}"]), "f" * count + "r", *(("f", one) for one in values))
