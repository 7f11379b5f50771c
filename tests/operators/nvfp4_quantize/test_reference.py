"""The oracle against exact rationals in plain Python, and what it says of blocks that are not finite."""

from __future__ import annotations

import pytest
import torch

from kernel_space.core.errors import InputError
from kernel_space.operators.nvfp4_quantize.reference import expected_outputs
from tests.numerics.nvfp4_oracle import blocked_offset, quantize_block
from tests.operators.nvfp4_quantize.values import activations


def by_rationals(z: torch.Tensor) -> tuple[bytes, bytes]:
    """(act, ascales) of finite fp32 ``[M, K]``, an element at a time."""
    m, k = z.shape
    act, scales = bytearray(m * k // 2), bytearray(-(-m // 128) * -(-k // 64) * 512)
    for row, values in enumerate(z.tolist()):
        for group in range(k // 16):
            codes, scale = quantize_block(values[16 * group : 16 * group + 16])
            scales[blocked_offset(row, group, k // 16)] = scale
            for index, code in enumerate(codes):
                act[(row * k + 16 * group + index) // 2] |= code << 4 * (index % 2)
    return bytes(act), bytes(scales)


@pytest.mark.parametrize("x_dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("has_smooth", [True, False])
def test_finite_activations(x_dtype: str, has_smooth: bool) -> None:
    x, smooth = activations(17, 96, x_dtype)
    # A float64 quotient of fp32 numbers, rounded to fp32, is the correctly rounded fp32 quotient.
    z = (x.double() / smooth.double()).float() if has_smooth else x.float()
    wanted = expected_outputs(x, smooth if has_smooth else None)
    assert (bytes(wanted.act.view(-1).tolist()), bytes(wanted.ascales.tolist())) == by_rationals(z)
    assert wanted.defined.all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_block_that_is_not_finite(bad: float) -> None:
    x = torch.ones(2, 32)
    x[1, 20] = bad
    wanted = expected_outputs(x, None)
    assert wanted.ascales[blocked_offset(1, 1, 2)] == 0x7F
    assert wanted.ascales.count_nonzero() == 4
    assert not wanted.defined[1, 8:].any() and wanted.defined.sum() == 24


def test_differences_count_bytes_but_not_codes_that_may_be_anything() -> None:
    x = torch.ones(1, 32)
    x[0, 0] = float("nan")
    wanted = expected_outputs(x, None)
    act, scales = wanted.act.clone(), wanted.ascales.clone()
    act[0, :8] += 1
    assert wanted.differences(act, scales) == 0
    act[0, 8] += 1
    scales[511] = 1
    assert wanted.differences(act, scales) == 2


def test_smooth_is_fp32_of_k_numbers() -> None:
    with pytest.raises(InputError, match=r"smooth must be float32 \[32\]"):
        expected_outputs(torch.ones(1, 32), torch.ones(31))
