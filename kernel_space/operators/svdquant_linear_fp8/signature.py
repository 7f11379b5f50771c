"""The arguments of every ``svdquant_linear_fp8`` kernel, in order."""

from __future__ import annotations

from kernel_space.core.signature import Grid, In, Out, Signature, Size, Stream, Workspace
from kernel_space.numerics.blocked import blocked_scale_bytes
from kernel_space.operators.nvfp4_quantize.packing import packed_shape

SIGNATURE = Signature(
    In("x", lambda p: p.dtype, lambda p: (p.m, p.k)),
    In("smooth", "fp32", lambda p: (p.k,)),
    In("lora_down", lambda p: p.dtype, lambda p: packed_shape(p.k, p.r), empties=True),  # ``pack_lora_down``
    In("wgt", "uint8", lambda p: (p.n, p.k // 2)),  # two E2M1 codes a byte, low nibble first
    In("wscales", "uint8", lambda p: (blocked_scale_bytes(p.n, p.k),)),
    In("lora_up", lambda p: p.dtype, lambda p: (p.n, p.r), empties=True),
    In("wcscale", "fp32", lambda p: (p.n,)),
    In("bias", "fp32", lambda p: (p.n,)),
    In("wpeak", "fp32", lambda p: (p.n,)),  # ``row_peaks``
    Out("y", lambda p: p.dtype, lambda p: (p.m, p.out_columns)),
    Workspace(),
    Size("m"),
    Size("k"),
    Size("n"),
    Grid(),
    Stream(),
)
