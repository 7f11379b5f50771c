"""Activations that tell a right kernel from a nearly right one. Needs torch alone."""

from __future__ import annotations

import math

import torch

from kernel_space.numerics.nvfp4 import E2M1_MAGNITUDES

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
SCALES = torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()  # all but zero
MIDPOINTS = torch.tensor([(a + b) / 2 for a, b in zip(E2M1_MAGNITUDES, E2M1_MAGNITUDES[1:], strict=False)])
ONES = 2 - 2**-23  # the mantissa that a step from a good guess does not round right


def activations(m: int, k: int, x_dtype: str, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(x, smooth): magnitudes of rows from 2^-12 to 2^12, so that scales underflow and saturate too."""
    draw = torch.Generator().manual_seed(seed + m * k)
    rows = torch.exp2(torch.rand(m, 1, generator=draw) * 24 - 12)
    x = torch.randn(m, k, generator=draw) * rows
    return x.to(DTYPES[x_dtype]), torch.exp2(torch.rand(k, generator=draw) * 20 - 10)


def neighbours(values: torch.Tensor, steps: int) -> list[torch.Tensor]:
    """fp32 numbers up to ``steps`` units in the last place below and above ``values``, and these."""
    found = [values]
    for towards in (-math.inf, math.inf):
        moved = values
        for _ in range(steps):
            moved = torch.nextafter(moved, torch.full_like(moved, towards))
            found.append(moved)
    return found


def rows_of(values: torch.Tensor, k: int) -> torch.Tensor:
    """``[rows, k]``, filled up with zeros."""
    rows = -(-len(values) // k)
    return torch.cat([values, values.new_zeros(rows * k - len(values))]).view(rows, k)


def smooth_of(k: int, seed: int) -> torch.Tensor:
    """From 2^-10 to 2^10 with any mantissa, some of them all ones or a power of two."""
    draw = torch.Generator().manual_seed(seed)
    smooth = torch.exp2(torch.rand(k, generator=draw) * 20 - 10)
    powers = torch.exp2(torch.randint(-10, 11, (k,), generator=draw).float())
    kind = torch.randint(0, 8, (k,), generator=draw)
    return torch.where(kind == 0, powers, torch.where(kind == 1, powers * ONES, smooth))


def blocks_at_ties() -> torch.Tensor:
    """fp32 ``[blocks, 16]``: for every scale its ties between codes and their neighbours, of both signs."""
    ties = SCALES[:, None] * MIDPOINTS  # exact: 7 bits
    around = torch.stack(neighbours(ties, 2), dim=2).flatten(1)  # 35 a scale
    around = torch.cat([around, -around, torch.zeros(len(SCALES), 5)], dim=1).view(-1, 15)
    return torch.cat([(6 * SCALES).repeat_interleave(5)[:, None], around], dim=1)


def hard_columns(target: float) -> list[tuple[float, float]]:
    """(x, smooth) in fp32 whose quotients lie beside the midpoint above ``target``, off by 3 parts in 2^47 at most.

    ``target`` is cut down to 24 bits N. With 2 N + 1 times s next to a multiple of 2^25 that multiple is x.
    """
    mantissa, exponent = math.frexp(target)
    odd = 2 * int(mantissa * (1 << 24)) + 1
    found = []
    for off in (-3, -2, -1, 1, 2, 3):
        s = off * pow(odd, -1, 1 << 25) % (1 << 25)
        x = (s * odd - off) >> 25
        if 1 << 23 <= s < 1 << 24:
            found.append((math.ldexp(x, exponent - 24), math.ldexp(s, -24)))
    return found


def hard_blocks() -> tuple[list[float], list[float]]:
    """x and smooth of blocks of 16: the midpoints of fp32 on both sides of ties between codes, for every scale."""
    x, smooth = [], []
    for scale in SCALES.tolist():
        ties = [scale * middle for middle in MIDPOINTS.tolist()]
        columns = [
            one for tie in ties for target in (tie, tie * (1 - 2**-25)) for one in hard_columns(target)
        ]
        columns = [*columns, *[(0.0, 1.0)] * 15][:15]
        for one, by in ((6 * scale, 1.0), *columns):
            x.append(one)
            smooth.append(by)
    return x, smooth
