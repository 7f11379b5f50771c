"""The oracle: what ``act`` and ``ascales`` must be, to the bit, and how far ``lora_act_in`` may be from float64.

The contract of the codes, every step rounded to fp32 as IEEE says:

    z = x * (1 / smooth)            the reciprocal rounded first
    scale = e4m3(amax(|z|) * (1 / 6))
    code = e2m1(z * (1 / scale))    0 where the scale is 0
"""

from __future__ import annotations

import dataclasses
import math

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.blocked import SF_VEC_SIZE
from kernel_space.numerics.nvfp4 import block_scales, encode_e2m1, pack_e2m1, round_e4m3
from kernel_space.numerics.output_check import OutputCheck, check_output, output_ulp
from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K

NAN_SCALE = 0x7F
SIXTH = 1 / 6  # fp32 rounds it to 0x3E2AAAAB

# The PTX ISA leaves order and rounding within one MMA instruction open ("at least single precision"), truncation
# included, so one rounding may err by a whole unit in the last place of fp32.
ACC_ROUNDOFF = 2.0**-23
MMA_K = 16  # products of one instruction; it may round after each of them and when it adds the sum before
CHUNK_ROUNDINGS = CHUNK_K // MMA_K * (MMA_K + 1)
OVERFLOWS = 2.0**120  # sums of magnitudes from here on may leave fp32


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
    """Of x ``[M, K]`` fp16, bf16 or fp32 and smooth fp32 ``[K]``, or None for none; on the device where they are.

    The scale of a block with NaN or infinity in it is the byte 0x7F. Raises ``InputError`` for a ``smooth`` that is not
    fp32 ``[K]``.
    """
    if smooth is not None and (smooth.dtype != torch.float32 or smooth.shape != x.shape[1:]):
        raise InputError(f"smooth must be float32 [{x.shape[1]}], got {smooth.dtype} {list(smooth.shape)}")
    rows = x.shape[0]
    z = x.float() if smooth is None else x.float() * smooth.reciprocal()
    blocks = z.reshape(-1, SF_VEC_SIZE)
    amax = blocks.abs().amax(dim=1)  # NaN if there is one
    finite = torch.isfinite(amax)
    blocks = blocks.masked_fill(~finite[:, None], 0.0)
    scales = round_e4m3((amax.masked_fill(~finite, 0.0) * SIXTH).double())
    step = scales.float()
    inverse = torch.where(step == 0, step, step.reciprocal())[:, None]
    codes = encode_e2m1(blocks * inverse).masked_fill_(step[:, None] == 0, 0)
    bytes_ = scales.view(torch.uint8).masked_fill(~finite, NAN_SCALE)
    return Expected(
        act=pack_e2m1(codes).view(rows, -1),
        ascales=block_scales(bytes_.view(rows, -1).view(torch.float8_e4m3fn)),
        defined=finite.repeat_interleave(SF_VEC_SIZE // 2).view(rows, -1),
    )


def check_lora(
    got: torch.Tensor, x: torch.Tensor, lora_down: torch.Tensor, *, parts: int, first_row: int = 0
) -> OutputCheck:
    """How ``got`` ``[M, R]`` compares with float64 ``x @ lora_down``; both of ``got``'s 16-bit dtype.

    ``parts``: sums along K of which the kernel adds up each result. A row that is not finite must not be finite in
    ``got``; where fp32 may overflow anything is right. docs/kernel_quantize.md derives the tolerance.
    """
    product, peak, path, total = _walk(x.double(), lora_down.double())
    roundings = -(-x.shape[1] // CHUNK_K) * CHUNK_ROUNDINGS + parts
    if roundings * ACC_ROUNDOFF > 0.5:
        raise InputError(f"K={x.shape[1]} is too large for a meaningful bound of an fp32 accumulation")
    start_anywhere = 1 if parts == 1 else 2  # a sum over k0..k1 is the difference of two sums from 0
    # Inside of a chunk a sum is the one at the chunk's begin and no more than all its products.
    error = peak * (roundings * start_anywhere) + total * CHUNK_ROUNDINGS
    error *= ACC_ROUNDOFF / (1 - roundings * ACC_ROUNDOFF) ** 2
    drift = (path * (CHUNK_K // MMA_K) + total + peak * (parts - 1)) * ACC_ROUNDOFF
    tolerance = error * (1 + torch.finfo(got.dtype).eps) + output_ulp(product.nan_to_num(), got.dtype)
    value = got.double()
    finite = torch.isfinite(total)
    free = total >= OVERFLOWS  # infinity too
    wrong = ~finite & torch.isfinite(value) & ~torch.isfinite(product)
    value = torch.where(free & ~wrong, 0.0, torch.where(wrong, math.nan, value)).to(got.dtype)
    zero = product.masked_fill(free | ~finite, 0.0)
    value = torch.where(~finite & ~wrong, zero.to(got.dtype), value)
    tolerance = torch.where(free | ~finite, 1.0, tolerance)
    drift = torch.where(free | ~finite, 0.0, drift)
    return check_output(value, zero, tolerance, drift=drift, first_row=first_row)


def _walk(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """(a @ b, its largest sum after any chunk, the sum of all of these, a @ b of magnitudes) of float64."""
    product = a.new_zeros((a.shape[0], b.shape[1]))
    peak, path, total = (torch.zeros_like(product) for _ in range(3))
    for start in range(0, a.shape[1], CHUNK_K):
        left, right = a[:, start : start + CHUNK_K], b[start : start + CHUNK_K]
        product += left @ right
        total += left.abs() @ right.abs()
        size = product.abs()
        torch.maximum(peak, size, out=peak)
        path += size
    return product, peak, path, total
