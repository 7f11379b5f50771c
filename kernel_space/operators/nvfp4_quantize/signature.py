"""The arguments of every ``nvfp4_quantize`` kernel, in order."""

from __future__ import annotations

from kernel_space.core.signature import Grid, In, Out, Signature, Size, Stream
from kernel_space.numerics.blocked import blocked_scale_bytes

SIGNATURE = Signature(
    In("x", lambda p: p.x_dtype, lambda p: (p.m, p.k)),
    In("smooth", "fp32", lambda p: (p.k if p.smooth == "fp32" else 0,), empties=True),
    Out("act", "uint8", lambda p: (p.m, p.k // 2)),  # two E2M1 codes a byte, low nibble first
    Out("ascales", "uint8", lambda p: (blocked_scale_bytes(p.m, p.k),)),
    Size("m"),
    Size("k"),
    Grid(),
    Stream(),
)
