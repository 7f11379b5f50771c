"""The arguments of every ``svdquant_gemm_nvfp4`` kernel, in order."""

from __future__ import annotations

from kernel_space.core.signature import Grid, In, Out, Signature, Size, Stream, Workspace
from kernel_space.numerics.blocked import blocked_scale_bytes

SIGNATURE = Signature(
    In("act", "uint8", lambda p: (p.m, p.k // 2)),  # two E2M1 codes a byte, low nibble first
    In("ascales", "uint8", lambda p: (blocked_scale_bytes(p.m, p.k),)),
    In("wgt", "uint8", lambda p: (p.n, p.k // 2)),
    In("wscales", "uint8", lambda p: (blocked_scale_bytes(p.n, p.k),)),
    In("lora_act_in", lambda p: p.lora_dtype, lambda p: (p.m, p.r), empties=True),
    In("lora_up", lambda p: p.lora_dtype, lambda p: (p.n, p.r), empties=True),
    In("wcscale", "fp32", lambda p: (p.n,)),
    In("bias", "fp32", lambda p: (p.n,)),
    In("next_smooth", "fp32", lambda p: (p.out_columns if p.smooth == "fp32" else 0,), empties=True),
    Out("next_act", "uint8", lambda p: (p.m, p.out_columns // 2)),
    Out("next_ascales", "uint8", lambda p: (blocked_scale_bytes(p.m, p.out_columns),)),
    Workspace(),
    Size("m"),
    Size("n"),
    Size("k"),
    Grid(),
    Stream(),
)
