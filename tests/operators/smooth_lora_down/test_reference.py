"""The oracle against plain Python, an element at a time."""

from __future__ import annotations

import math
import struct

import pytest
import torch

from kernel_space.core.errors import InputError
from kernel_space.operators.smooth_lora_down.reference import expected_xs
from tests.numerics.nvfp4_oracle import fp32
from tests.operators.smooth_lora_down.runs import DTYPES
from tests.operators.smooth_lora_down.values import beside_ties


def rounded(value: float, x_dtype: str) -> int:
    """The 16 bits of a finite fp32 number, to nearest even."""
    if x_dtype == "fp16":
        try:
            return struct.unpack("<H", struct.pack("<e", value))[0]
        except OverflowError:  # that beyond the largest number
            return 0xFC00 if value < 0 else 0x7C00
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def by_hand(x: torch.Tensor, smooth: torch.Tensor | None, x_dtype: str) -> list[list[int]]:
    """Bits of every element at its place, by the formula; two roundings to fp32 go before that to 16 bits."""
    m, k = x.shape
    inverse = [1.0] * k if smooth is None else [fp32(1 / one) for one in smooth.tolist()]
    found = [[0] * (-(-k // 64) * 64) for _ in range(m)]
    for row, values in enumerate(x.tolist()):
        for at, value in enumerate(values):
            t, w, e, i = at % 64 // 16, at // 8 % 2, at // 4 % 2, at % 4
            place = at // 64 * 64 + 8 * (4 * w + 2 * (i % 2) + i // 2) + 2 * t + e
            found[row][place] = rounded(fp32(value * inverse[at]), x_dtype)
    return found


def bits(xs: torch.Tensor) -> list[list[int]]:
    return [[one & 0xFFFF for one in row] for row in xs.view(torch.int16).tolist()]


@pytest.mark.parametrize("x_dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("has_smooth", [True, False])
@pytest.mark.parametrize("k", [32, 64, 160])
def test_numbers_and_places(k: int, has_smooth: bool, x_dtype: str) -> None:
    """Subnormal numbers and those beyond fp16, too."""
    draw = torch.Generator().manual_seed(k)
    rows = torch.exp2(torch.rand(9, 1, generator=draw) * 40 - 28)
    x = (torch.randn(9, k, generator=draw) * rows).to(DTYPES[x_dtype])
    smooth = torch.exp2(torch.rand(k, generator=draw) * 20 - 10) if has_smooth else None
    xs = expected_xs(x, smooth)
    assert xs.dtype == x.dtype and bits(xs) == by_hand(x, smooth, x_dtype)
    if has_smooth and x_dtype == "fp16" and k == 160:
        assert xs.isinf().any() and ((xs != 0) & (xs.abs() < 2**-14)).any()


@pytest.mark.parametrize("x_dtype", ["fp16", "bf16"])
def test_products_beside_ties(x_dtype: str) -> None:
    x, smooth = beside_ties(DTYPES[x_dtype])
    assert bits(expected_xs(x, smooth)) == by_hand(x, smooth, x_dtype)
    quotients = (x.float() / smooth).to(x.dtype)
    assert not torch.equal(expected_xs(quotients, None), expected_xs(x, smooth)), (
        "the reciprocal is rounded first"
    )


def test_numbers_that_are_not_finite() -> None:
    x = torch.ones(1, 32, dtype=torch.float16)
    x[0, :4] = torch.tensor([math.inf, -math.inf, math.nan, 0.0])
    smooth = torch.full((32,), 2.0)
    smooth[3] = 0.0
    xs = expected_xs(x, smooth)[0]
    assert xs[0] == math.inf and xs[16] == -math.inf and xs[8].isnan() and xs[24].isnan()  # chunks 0, 2, 1, 3
    assert xs[1] == 0.5


def test_smooth_is_fp32_of_k_numbers() -> None:
    x = torch.ones(1, 32).half()
    for smooth in (torch.ones(31), torch.ones(32).half()):
        with pytest.raises(InputError, match=r"smooth must be float32 \[32\]"):
            expected_xs(x, smooth)
