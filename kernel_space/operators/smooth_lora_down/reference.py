"""The oracle: what ``xs`` must be, to the bit.

    xs = quad_order(round16(fp32(x) * (1 / smooth)))      the reciprocal rounded to fp32 first

``lora_act_in`` is that of ``nvfp4_quantize``; so is how far it may be from float64.
"""

from __future__ import annotations

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.quad_order import to_quad_order


def expected_xs(x: torch.Tensor, smooth: torch.Tensor | None) -> torch.Tensor:
    """Of x ``[M, K]`` fp16 or bf16 and smooth fp32 ``[K]``, or None for none: ``[M, ceil(K / 64) * 64]`` of x's dtype.

    Raises ``InputError`` for a ``smooth`` that is not fp32 ``[K]``.
    """
    if smooth is None:
        return to_quad_order(x)
    if smooth.dtype != torch.float32 or smooth.shape != x.shape[1:]:
        raise InputError(f"smooth must be float32 [{x.shape[1]}], got {smooth.dtype} {list(smooth.shape)}")
    return to_quad_order((x.float() * smooth.reciprocal()).to(x.dtype))
