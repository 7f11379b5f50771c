"""Which codes and scales a correct kernel may write, of a y of which float64 knows the bounds.

Sums in fp32 have no order that a contract could name, so y may be any 16-bit number between two bounds, mostly one
number or two. All that comes after it is monotone and rounded as IEEE says (``nvfp4_quantize.reference``):

    scale between those of the least and of the largest amax of its block
    code  between those of the least and of the largest z, with the scale that was written

So where the bounds of y agree, which is nearly everywhere, codes and scales are judged to the bit.
"""

from __future__ import annotations

import dataclasses

import torch

from kernel_space.numerics.blocked import SF_VEC_SIZE
from kernel_space.numerics.nvfp4 import (
    block_scales,
    encode_e2m1,
    pack_e2m1,
    round_e4m3,
    unblock_scales,
    unpack_e2m1,
)
from kernel_space.operators.nvfp4_quantize.reference import NAN_SCALE, SIXTH


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Admissible:
    """Of some rows: ``least`` and ``most`` codes of z, int8 ordinals ``[rows, N]``, given the scales that were written;
    ``defined`` bool ``[rows, N]``, False where codes may be anything. ``ascales``, ``top``: the least and the largest
    byte of each scale, in the blocked layout. ``act``: the least codes as they are stored.
    """

    least: torch.Tensor
    most: torch.Tensor
    defined: torch.Tensor
    act: torch.Tensor
    ascales: torch.Tensor
    top: torch.Tensor

    def wrong_codes(self, act: torch.Tensor) -> torch.Tensor:
        """bool ``[rows, N/2]``: bytes of which a code is not between its bounds."""
        found = _ordinal(unpack_e2m1(act))
        outside = ((found < self.least) | (found > self.most)) & self.defined
        return outside.view(*act.shape, 2).any(dim=-1)

    def wrong_scales(self, ascales: torch.Tensor) -> torch.Tensor:
        """bool, of every byte of the blocked layout; padding must be zero."""
        return (ascales < self.ascales) | (ascales > self.top)


def admissible(
    low: torch.Tensor, high: torch.Tensor, smooth: torch.Tensor | None, ascales: torch.Tensor
) -> Admissible:
    """``low``, ``high``: the least and the largest y, 16-bit ``[rows, N]``; ``smooth``: fp32 ``[N]`` or None;
    ``ascales``: what the kernel wrote for these rows, by which codes are judged.
    """
    inverse = torch.ones((), device=low.device) if smooth is None else smooth.reciprocal()
    ends = low.float() * inverse, high.float() * inverse
    bottom, top = _scale_bytes(*ends)
    rows, columns = low.shape
    step = unblock_scales(ascales, rows, columns).float().repeat_interleave(SF_VEC_SIZE, dim=1)
    # An infinite bound: whether the block is finite nobody knows, and what its scale is says the kernel.
    defined = torch.isfinite(step) & torch.isfinite(ends[0]) & torch.isfinite(ends[1])
    # in the order of codes, as -0 is not less than 0
    ordinals = [_ordinal(_codes(z, step, defined)) for z in ends]
    least = torch.minimum(*ordinals)
    return Admissible(
        least=least,
        most=torch.maximum(*ordinals),
        defined=defined,
        act=pack_e2m1(torch.where(least < 0, 7 - least, least).to(torch.uint8)),
        ascales=block_scales(bottom.view(torch.float8_e4m3fn)),
        top=block_scales(top.view(torch.float8_e4m3fn)),
    )


def _scale_bytes(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """uint8 ``[rows, N/16]``: the least and the largest byte of each scale, of z between these ends. 0x7F, for what is
    not finite, is the largest of all."""
    magnitudes = one.abs(), other.abs()
    least = torch.minimum(*magnitudes).masked_fill((one <= 0) != (other < 0), 0.0)
    return _bytes_of(least), _bytes_of(torch.maximum(*magnitudes))


def _bytes_of(magnitudes: torch.Tensor) -> torch.Tensor:
    amax = magnitudes.view(len(magnitudes), -1, SF_VEC_SIZE).amax(dim=2)  # NaN if there is one
    finite = torch.isfinite(amax)
    scales = round_e4m3((amax.masked_fill(~finite, 0.0) * SIXTH).double())
    return scales.view(torch.uint8).masked_fill(~finite, NAN_SCALE)


def _codes(z: torch.Tensor, step: torch.Tensor, finite: torch.Tensor) -> torch.Tensor:
    empty = step == 0
    inverse = step.masked_fill(empty | ~finite, 1.0).reciprocal()
    return encode_e2m1(z.masked_fill(~finite, 0.0) * inverse).masked_fill_(empty, 0)


def _ordinal(codes: torch.Tensor) -> torch.Tensor:
    """E2M1 codes -> int8 in the order of their numbers, -0 below 0."""
    number = codes.to(torch.int8)
    return torch.where(number > 7, 7 - number, number)
