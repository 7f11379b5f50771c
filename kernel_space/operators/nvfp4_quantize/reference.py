"""The oracle: what ``act`` and ``ascales`` must be, to the bit."""

from __future__ import annotations

import dataclasses

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.nvfp4 import SF_VEC_SIZE, block_scales, quantize_nvfp4

NAN_SCALE = 0x7F


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Expected:
    """``act`` uint8 ``[M, K/2]``, ``ascales`` uint8 in the blocked layout.

    ``defined`` bool ``[M, K/2]``: codes of a block that is not finite may be anything.
    """

    act: torch.Tensor
    ascales: torch.Tensor
    defined: torch.Tensor

    def differences(self, act: torch.Tensor, ascales: torch.Tensor) -> int:
        """Bytes that are not what they must be."""
        wrong = ((act != self.act) & self.defined).sum() + (ascales != self.ascales).sum()
        return int(wrong)


def expected_outputs(x: torch.Tensor, smooth: torch.Tensor | None) -> Expected:
    """Of x ``[M, K]`` fp16, bf16 or fp32 and smooth fp32 ``[K]``, or None for none.

    ``quantize_nvfp4`` of ``fp32(x) / smooth``; the scale of a block with NaN or infinity in it is the byte 0x7F.
    Raises ``InputError`` for a ``smooth`` that is not fp32 ``[K]``.
    """
    if smooth is not None and (smooth.dtype != torch.float32 or smooth.shape != x.shape[1:]):
        raise InputError(f"smooth must be float32 [{x.shape[1]}], got {smooth.dtype} {list(smooth.shape)}")
    z = x.float() if smooth is None else x.float() / smooth
    blocks = z.reshape(-1, SF_VEC_SIZE)
    finite = torch.isfinite(blocks).all(dim=1)
    quantized = quantize_nvfp4(torch.where(finite[:, None], blocks, 0.0).view(z.shape))
    bytes_ = quantized.scales.view(torch.uint8).masked_fill(~finite.view(x.shape[0], -1), NAN_SCALE)
    defined = finite.repeat_interleave(SF_VEC_SIZE // 2).view(x.shape[0], -1)
    return Expected(
        act=quantized.codes, ascales=block_scales(bytes_.view(torch.float8_e4m3fn)), defined=defined
    )
