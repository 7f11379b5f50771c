"""The quantizer's kernel for a card, run without one: finite blocks to the bit, others marked NaN."""

from __future__ import annotations

import types

import pytest
import torch

from kernel_space.numerics.nvfp4 import block_scales, quantize_nvfp4, unblock_scales
from tests.runtime.fake_triton import install
from tests.runtime.test_quantize import expected, random, same

NAN_BYTE = 0x7F
LARGEST = torch.finfo(torch.float32).max


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    return install(monkeypatch)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("m", "k"), [(1, 32), (17, 96), (129, 64)])
def test_finite_blocks_against_exact_rationals(
    kernel: types.ModuleType, m: int, k: int, dtype: torch.dtype
) -> None:
    x = random(m, k, dtype)
    assert same(kernel.quantize_on_card(x, None), expected(x.float()))


def spoil(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``x`` with values that are not finite in some blocks, and the mask ``[rows, groups]`` of these blocks."""
    x, bad = x.clone(), torch.zeros(x.shape[0], x.shape[1] // 16, dtype=torch.bool)
    values = (torch.nan, -torch.nan, torch.inf, -torch.inf)
    for row in range(0, x.shape[0] - 1, 2):
        column = (37 * row + 5) % x.shape[1]
        x[row, column] = values[row // 2 % 4]
        bad[row, column // 16] = True
    x[-1, :16], bad[-1, 0] = torch.tensor(values).repeat(4).to(x.dtype), True
    return x, bad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("smoothed", [False, True])
def test_a_block_that_is_not_finite_gets_the_nan_scale(
    kernel: types.ModuleType, dtype: torch.dtype, smoothed: bool
) -> None:
    clean = random(21, 288, dtype)
    x, bad = spoil(clean)
    smooth = torch.rand(288, generator=torch.Generator().manual_seed(1)) + 0.5 if smoothed else None
    act, ascales = kernel.quantize_on_card(x, smooth)
    z = clean.float() if smooth is None else clean.float() * (1 / smooth)
    codes, wanted = expected(z)  # by rationals
    scales = unblock_scales(ascales, 21, 288).view(torch.uint8)
    assert (scales[bad] == NAN_BYTE).all()
    wanted_scales = unblock_scales(torch.tensor(list(wanted), dtype=torch.uint8), 21, 288).view(torch.uint8)
    assert torch.equal(scales[~bad], wanted_scales[~bad])
    wanted_codes = torch.tensor(list(codes), dtype=torch.uint8).view(21, 18, 8)
    assert torch.equal(act.view(21, 18, 8)[~bad], wanted_codes[~bad])
    padding = block_scales(torch.ones(21, 18).to(torch.float8_e4m3fn)) == 0
    assert not ascales[padding].any()


def test_a_quotient_that_overflows_is_not_finite(kernel: types.ModuleType) -> None:
    x, smooth = torch.ones(3, 64), torch.ones(64)
    x[0, 3], smooth[3] = LARGEST, 0.5  # infinite
    x[1, 3] = 2688.0  # 5376: saturates
    x[:, 17], smooth[17] = torch.tensor([0.0, 0.0, 1.0]), 1e-45  # NaN, NaN, infinite: 1 / smooth is infinite
    x[2, 33], smooth[33] = 0.0, 0.0  # NaN there, infinite in the other rows
    _, ascales = kernel.quantize_on_card(x, smooth)
    bad = unblock_scales(ascales, 3, 64).view(torch.uint8) == NAN_BYTE
    assert bad.tolist() == [
        [True, True, True, False],
        [False, True, True, False],
        [False, True, True, False],
    ]


def test_the_largest_finite_number_saturates(kernel: types.ModuleType) -> None:
    x = torch.zeros(1, 32)
    x[0, 0], x[0, 16] = LARGEST, -LARGEST
    act, ascales = kernel.quantize_on_card(x, None)
    wanted = quantize_nvfp4(x)
    assert torch.equal(act, wanted.codes) and torch.equal(ascales, block_scales(wanted.scales))
