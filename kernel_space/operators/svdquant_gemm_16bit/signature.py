"""The arguments of every ``svdquant_gemm_16bit`` kernel, in order."""

from __future__ import annotations

from kernel_space.core.signature import Grid, In, Out, Signature, Size, Stream, Workspace
from kernel_space.numerics.blocked import blocked_scale_bytes
from kernel_space.numerics.quad_order import ordered_columns

SIGNATURE = Signature(
    In("xs", lambda p: p.dtype, lambda p: (p.m, ordered_columns(p.k))),  # in the order of ``quad_order``
    In("wgt", "uint8", lambda p: (p.n, p.k // 2)),  # two E2M1 codes a byte, low nibble first
    In("wscales", "uint8", lambda p: (blocked_scale_bytes(p.n, p.k),)),
    In("lora_act_in", lambda p: p.dtype, lambda p: (p.m, p.r), empties=True),
    In("lora_up", lambda p: p.dtype, lambda p: (p.n, p.r), empties=True),
    In("wcscale", "fp32", lambda p: (p.n,)),
    In("bias", "fp32", lambda p: (p.n,)),
    Out("y", lambda p: p.dtype, lambda p: (p.m, p.out_columns)),
    Workspace(),
    Size("m"),
    Size("n"),
    Size("k"),
    Grid(),
    Stream(),
)
