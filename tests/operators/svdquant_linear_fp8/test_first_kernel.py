"""The first kernel of ``merged_fp8`` executed: x in FP8 to the bit, merged weights but where fp32 decides a tie."""

from __future__ import annotations

import pytest
import torch

from kernel_space.operators.svdquant_linear_fp8.problem import Fp8LinearProblem
from tests.operators.svdquant_linear_fp8.runs import (
    DTYPES,
    PLAIN,
    Found,
    Tensors,
    e4m3_bytes,
    first_kernel,
    inputs,
    merged_by_hand,
    problem,
    rows_by_hand,
    value_of,
)

SHORT = PLAIN.replace("quantize_rows=2", "quantize_rows=8")
LONG = PLAIN.replace("merge_chunks=4", "merge_chunks=16")
BEHIND = PLAIN + " quantize_last=true"  # and more CTAs than weights need
FOUR = LONG.replace("quantize_rows=2", "quantize_rows=4")
FP32_ROUNDOFF = 2.0**-24


def found(text: str, shape: Fp8LinearProblem, tensors: Tensors, *, merges: bool = True) -> Found:
    made, result = first_kernel(text, shape, tensors, merges=merges)
    assert result.ok, result
    return made


def holds_rows(made: Found, x: torch.Tensor) -> bool:
    """NaN is NaN in a scale, whatever its bits are."""
    x8, scales = rows_by_hand(x)
    same = torch.equal(made.scales.nan_to_num(nan=-1.0), scales.nan_to_num(nan=-1.0))
    return same and torch.equal(made.x8, x8)


def test_bytes_by_hand_are_those_of_the_format() -> None:
    """Every byte is its own number's, and of all fp16 numbers torch knows the nearest."""
    half = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    values = half[half.isfinite()].double()
    nearest = values.clamp(-448, 448).float().to(torch.float8_e4m3fn).view(torch.uint8)
    assert torch.equal(e4m3_bytes(values), nearest)


# R decides how many threads a CTA has: 256 to R = 256, then 128. Rows of x fit four, two or one at a time.
@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        (PLAIN, "7,352,8,48", "bf16"),
        (SHORT, "5,32,8,0", "fp16"),
        pytest.param(FOUR, "6,4160,8,0", "fp16", marks=pytest.mark.slow),
        (FOUR, "3,8224,8,0", "fp16"),
        (FOUR, "5,17440,8,0", "fp16"),
        (BEHIND, "11,96,136,16", "bf16"),
        pytest.param(LONG, "3,2080,8,272", "bf16", marks=pytest.mark.slow),
        pytest.param(LONG, "3,4128,8,272", "fp16", marks=pytest.mark.slow),
        pytest.param(LONG, "3,9248,8,272", "bf16", marks=pytest.mark.slow),
    ],
)
def test_rows_of_x_are_quantized_to_the_bit(text: str, shape: str, dtype: str) -> None:
    """Each row has its own size, and its largest number at another place: in every warp and behind what is held."""
    sizes = problem(shape, dtype)
    tensors = inputs(sizes)
    x = tensors["x"]
    x *= 2.0 ** torch.arange(sizes.m)[:, None] / 8
    for row in range(sizes.m):
        x[row, (row * sizes.k // sizes.m + sizes.k - 1) % sizes.k] = (-1) ** row * 100
    assert holds_rows(found(text, sizes, tensors, merges=False), x)


@pytest.mark.parametrize("dtype", ["bf16", pytest.param("fp16", marks=pytest.mark.slow)])
def test_rows_of_zeros_tiny_numbers_nan_and_infinity(dtype: str) -> None:
    """A row below 2^-100 counts as zeros; what is not finite stays in its row."""
    sizes = problem("11,352,8,48", dtype)
    x = inputs(sizes)["x"]
    x[1] = 0.0
    x[2] = -0.0
    x[3] *= 2.0**-105 / x[3].abs().max()  # of fp16 zeros
    x[4] = 0.0
    x[4, 350] = -(2.0**-100)  # the least that counts, in bf16
    x[5, 17] = torch.nan
    x[6, 351] = -torch.inf
    x[7] = torch.inf
    x[8] = torch.finfo(DTYPES[dtype]).max
    x[9] = torch.finfo(DTYPES[dtype]).smallest_normal / 4 * torch.arange(352).remainder(4)
    made = found(PLAIN, sizes, inputs(sizes, x=x), merges=False)
    assert holds_rows(made, x)
    finite = made.scales.isfinite()
    assert finite.tolist() == [row not in (5, 6, 7) for row in range(11)]
    assert (made.x8[1:4] % 128 == 0).all() and (made.scales[1:4] == 0).all()


def test_negative_nan_in_the_last_element_is_seen() -> None:
    """Bits of a NaN, its sign not among them, are above those of infinity."""
    sizes = problem("3,352,8,48")
    x = inputs(sizes)["x"]
    x.view(torch.int16)[1, 351] = -1
    x[1, 0] = torch.inf
    made = found(PLAIN, sizes, inputs(sizes, x=x), merges=False)
    assert made.scales.isnan().tolist() == [False, True, False]
    assert holds_rows(made, x)


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        (PLAIN, "1,352,136,48", "bf16"),
        (SHORT, "1,416,40,0", "fp16"),
        (BEHIND.replace("=4", "=14"), "3,992,40,16", "bf16"),
        pytest.param(LONG, "1,1120,72,272", "bf16", marks=pytest.mark.slow),
        pytest.param(PLAIN.replace("=4", "=12"), "1,736,136,512", "fp16", marks=pytest.mark.slow),
        pytest.param(PLAIN.replace("=4", "=2"), "1,32,8,256", "fp16", marks=pytest.mark.slow),
    ],
)
def test_weights_are_merged_to_the_bit_but_where_fp32_decides(text: str, shape: str, dtype: str) -> None:
    """A byte that differs is the next one, and the number in float64 is as near to their middle as fp32 may err."""
    sizes = problem(shape, dtype)
    tensors = inputs(sizes)
    made, wanted = found(text, sizes, tensors), merged_by_hand(tensors, sizes)
    error = wanted.made_of * ((sizes.r // 16 + 5) * FP32_ROUNDOFF)
    low, high = (e4m3_bytes(value) for value in (wanted.value - error, wanted.value + error))
    nearest = e4m3_bytes(wanted.value)
    sure = value_of(low) == value_of(high)  # of a zero bytes have two
    assert sure.double().mean() > 0.998
    assert torch.equal(made.merged[sure], nearest[sure])
    assert ((made.merged == low) | (made.merged == high))[~sure].all()
    assert wanted.value.abs().max() <= 448
