"""Activations that tell a right kernel from a nearly right one. Needs torch alone."""

from __future__ import annotations

import functools

import torch

COLUMNS = 96


@functools.cache
def beside_ties(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """(x ``[1, 96]``, smooth): products by 1 / smooth that become another 16-bit number when their rounding to fp32 is
    cut: they lie beside a tie, nearer than half a unit of fp32.
    """
    draw = torch.Generator().manual_seed(0)
    found_x, found_smooth = [], []
    while sum(map(len, found_x)) < COLUMNS:
        x = torch.randn(1 << 21, generator=draw).to(dtype)
        smooth = torch.exp2(torch.rand(1 << 21, generator=draw) * 4 - 2)
        exact = x.double() * (1 / smooth.double()).float().double()  # 24 + 11 bits: exact
        rounded = exact.float()
        beyond = rounded.double().abs() > exact.abs()
        cut = torch.where(beyond, torch.nextafter(rounded, torch.zeros(())), rounded)
        hard = rounded.to(dtype) != cut.to(dtype)
        found_x.append(x[hard])
        found_smooth.append(smooth[hard])
    return torch.cat(found_x)[:COLUMNS].view(1, -1), torch.cat(found_smooth)[:COLUMNS].contiguous()
