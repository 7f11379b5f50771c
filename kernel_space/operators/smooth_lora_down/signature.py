"""The arguments of every ``smooth_lora_down`` kernel, in order."""

from __future__ import annotations

from kernel_space.core.signature import In, Out, Signature, Size, Stream
from kernel_space.numerics.quad_order import ordered_columns
from kernel_space.operators.nvfp4_quantize.packing import packed_shape
from kernel_space.operators.nvfp4_quantize.signature import OfRank, OutOfRank

SIGNATURE = Signature(
    In("x", lambda p: p.x_dtype, lambda p: (p.m, p.k)),
    In("smooth", "fp32", lambda p: (p.k if p.smooth == "fp32" else 0,), empties=True),
    OfRank(
        "lora_down", lambda p: p.x_dtype, lambda p: packed_shape(p.k, p.r)
    ),  # as ``nvfp4_quantize`` takes it
    Out(
        "xs", lambda p: p.x_dtype, lambda p: (p.m, ordered_columns(p.k))
    ),  # ``numerics.quad_order`` says which order
    # Without elements it feeds no x: then it has not even its dtype.
    OutOfRank("lora_act_in", lambda p: p.x_dtype if p.r else "uint8", lambda p: (p.m, p.r)),
    Size("m"),
    Size("k"),
    Stream(),
)
