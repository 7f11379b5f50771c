"""Values that an approximate quotient, a second rounding or a lost sign would get wrong, in the machine."""

from __future__ import annotations

import math

import pytest
import torch

from kernel_space.operators.nvfp4_quantize.reference import expected_outputs
from tests.checkered import checkered
from tests.operators.nvfp4_quantize.runs import ARCHS, quantized
from tests.operators.nvfp4_quantize.values import (
    ONES,
    SCALES,
    blocks_at_ties,
    hard_blocks,
    neighbours,
    rows_of,
    smooth_of,
)

TEXT = "tile_mk=128x64 threads_per_cta=128 threads_per_row=4 row_loads=2"
EACH_ARCH = pytest.mark.parametrize("arch", ARCHS)


def heavy(quick: str) -> pytest.MarkDecorator:
    """Both architectures, all but ``quick`` slow: they have one source, which differs in codes and pairs alone."""
    others = (pytest.param(arch, marks=pytest.mark.slow) for arch in ARCHS if arch != quick)
    return pytest.mark.parametrize("arch", [quick, *others])


def check(x: torch.Tensor, smooth: torch.Tensor | None, arch: str) -> None:
    got = quantized(x, smooth, arch, TEXT, check_races=False)
    assert expected_outputs(x, smooth).differences(*got) == 0


@pytest.mark.parametrize(
    ("has_smooth", "dtype", "arch"), checkered([True, False], [torch.float16, torch.bfloat16], ARCHS)
)
def test_every_pattern_of_16_bits(dtype: torch.dtype, has_smooth: bool, arch: str) -> None:
    """In order of magnitude, so that those of a block have one scale: NaN and infinities are by themselves."""
    order = torch.arange(1 << 15).repeat_interleave(2)
    order[1::2] += 1 << 15
    x = (order - (order >> 15 << 16)).to(torch.int16).view(dtype).view(-1, 512)
    check(x, smooth_of(512, 1) if has_smooth else None, arch)


@EACH_ARCH
def test_every_pattern_of_fp16_at_random_places(arch: str) -> None:
    finite = torch.arange(1 << 16).to(torch.int16).view(torch.float16)
    finite = finite[torch.isfinite(finite)]
    order = torch.randperm(len(finite), generator=torch.Generator().manual_seed(7))
    check(rows_of(finite[order], 512), smooth_of(512, 2), arch)


@pytest.mark.parametrize(("has_smooth", "arch"), checkered([True, False], ARCHS))
def test_ties_between_codes(has_smooth: bool, arch: str) -> None:
    """With smooth, x is the product's neighbours: the quotients fall on the ties and beside them."""
    z = rows_of(blocks_at_ties().flatten(), 512)
    smooth = smooth_of(512, 3)
    for step in (-1.0, 0.0, 1.0) if has_smooth else (0.0,):
        x = z * smooth if has_smooth else z
        check(torch.nextafter(x, x + step * x.abs()), smooth if has_smooth else None, arch)


@pytest.mark.parametrize(("has_smooth", "arch"), checkered([False, True], ARCHS))
def test_ties_between_scales(has_smooth: bool, arch: str) -> None:
    edges = torch.cat([torch.zeros(1), SCALES, torch.tensor([480.0])])
    ties = 6 * (edges[:-1] + edges[1:]) / 2  # exact: the midpoints have 5 bits
    amax = torch.cat(neighbours(ties, 2))
    share = torch.linspace(-1, 1, 16).repeat(len(amax), 1)
    z = rows_of((amax[:, None] * share).flatten(), 512)
    smooth = smooth_of(512, 4)
    for step in (-1.0, 0.0, 1.0) if has_smooth else (0.0,):
        x = z * smooth if has_smooth else z
        check(torch.nextafter(x, x + step * x.abs()), smooth if has_smooth else None, arch)


@EACH_ARCH
def test_zeros_of_both_signs_and_tiny_numbers_keep_their_sign(arch: str) -> None:
    """Beside a large one, so that the scale is not zero; and alone, where codes are zero without a sign."""
    tiny = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-38, 2.0**-60, -(2.0**-60)])
    beside = torch.cat([tiny, torch.tensor([1.0, -3.0]), tiny[:6]])
    x = torch.stack([beside, beside.flip(0), torch.cat([tiny, -tiny]), beside * 448, -beside])
    x = torch.cat([x.flatten(), torch.zeros(16), -torch.zeros(16), torch.full((16,), -1e-44)]).view(1, -1)
    check(x, None, arch)
    # What the rounded reciprocal of 1.1 to 1.9 lacks has either sign.
    mantissas = 1 + 0.1 * (torch.arange(x.shape[1]) % 9 + 1)
    for exponent in (-10.0, 0.0, 10.0, -100.0, 100.0):
        check(x, mantissas * 2.0**exponent, arch)


@heavy("sm_90a")
def test_numbers_that_are_not_finite_and_quotients_that_overflow(arch: str) -> None:
    """Each in a block of its own between ordinary ones. Codes of such a block may be anything, its scale may not."""
    largest = torch.finfo(torch.float32).max
    x = torch.ones(8, 512)
    for row, bad in enumerate([math.inf, -math.inf, math.nan, largest, -largest, 2.0**100, 3e38, 65504.0]):
        x[row, 3::32] = bad
    check(x, None, arch)
    check(x, smooth_of(512, 5), arch)
    check(x.half().float().nan_to_num(0, 65504, -65504), smooth_of(512, 6), arch)


@heavy("sm_100a")
def test_smooth_beyond_what_the_quick_quotient_takes(arch: str) -> None:
    """Zero, subnormal, huge, infinite, negative and NaN: every thread decides by itself to divide."""
    draw = torch.Generator().manual_seed(8)
    odd = [
        0.0,
        -0.0,
        1e-45,
        1e-40,
        2.0**-126,
        2.0**-41,
        2.0**41,
        2.0**126,
        3e38,
        math.inf,
        math.nan,
        -1.5,
        ONES,
    ]
    smooth = torch.ones(1024)
    places = torch.arange(len(odd)) * 64 + 5
    smooth[places] = torch.tensor(odd)
    x = torch.randn(16, 1024, generator=draw) * torch.exp2(
        torch.randint(-40, 40, (16, 1), generator=draw).float()
    )
    x[:, ::7] = 0
    check(x, smooth, arch)
    x[:, places] *= smooth[places]  # quotients like those of the columns beside
    check(x.nan_to_num(1.0, 1e38, -1e38), smooth, arch)


@heavy("sm_90a")
def test_quotients_beside_a_midpoint_of_fp32_decide_codes(arch: str) -> None:
    """A quotient that lies beside it by less than its own error may take the wrong side, and with that a wrong code."""
    x, smooth = hard_blocks()
    assert torch.tensor(x).double().tolist() == x and torch.tensor(smooth).double().tolist() == smooth
    assert sum(by != 1.0 for by in smooth) > 1000
    check(torch.tensor(x).view(1, -1), torch.tensor(smooth), arch)


@EACH_ARCH
def test_random_quotients_with_many_bits(arch: str) -> None:
    draw = torch.Generator().manual_seed(9)
    x = torch.randn(64, 512, generator=draw) * torch.exp2(torch.rand(64, 1, generator=draw) * 30 - 15)
    check(x, smooth_of(512, 10), arch)
