"""The arguments of every ``nvfp4_quantize`` kernel, in order."""

from __future__ import annotations

import dataclasses

from kernel_space.core.signature import Grid, In, Out, Signature, Size, Stream
from kernel_space.numerics.blocked import blocked_scale_bytes
from kernel_space.operators.nvfp4_quantize.packing import packed_shape


@dataclasses.dataclass(frozen=True)
class OfRank(In):
    """An input without elements where R = 0. ``empties_of``: it is empty together with whatever says the same."""

    empties: bool = True
    empties_of: str = "r"


@dataclasses.dataclass(frozen=True)
class OutOfRank(Out):
    """An output without elements where R = 0: nothing is written, and the address is 0."""

    empties: bool = True
    empties_of: str = "r"


SIGNATURE = Signature(
    In("x", lambda p: p.x_dtype, lambda p: (p.m, p.k)),
    In("smooth", "fp32", lambda p: (p.k if p.smooth == "fp32" else 0,), empties=True),
    OfRank("lora_down", lambda p: p.x_dtype, lambda p: packed_shape(p.k, p.r)),  # ``packing`` says how
    Out("act", "uint8", lambda p: (p.m, p.k // 2)),  # two E2M1 codes a byte, low nibble first
    Out("ascales", "uint8", lambda p: (blocked_scale_bytes(p.m, p.k),)),
    # Without elements it feeds no x: then it has not even its dtype.
    OutOfRank("lora_act_in", lambda p: p.x_dtype if p.r else "uint8", lambda p: (p.m, p.r)),
    Size("m"),
    Size("k"),
    Grid(),
    Stream(),
)
