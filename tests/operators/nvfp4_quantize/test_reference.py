"""The oracle against exact rationals in plain Python, and what it says of blocks that are not finite."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.nvfp4 import NVFP4Tensor, dequantize_nvfp4, quantize_nvfp4, unblock_scales
from kernel_space.operators.nvfp4_quantize.reference import check_lora, expected_outputs
from tests.numerics.nvfp4_oracle import blocked_offset, fp32, quantize_activations
from tests.operators.nvfp4_quantize.values import activations


def by_rationals(z: torch.Tensor) -> tuple[bytes, bytes]:
    """(act, ascales) of finite fp32 ``[M, K]``, an element at a time."""
    m, k = z.shape
    act, scales = bytearray(m * k // 2), bytearray(-(-m // 128) * -(-k // 64) * 512)
    for row, values in enumerate(z.tolist()):
        for group in range(k // 16):
            codes, scale = quantize_activations(values[16 * group : 16 * group + 16])
            scales[blocked_offset(row, group, k // 16)] = scale
            for index, code in enumerate(codes):
                act[(row * k + 16 * group + index) // 2] |= code << 4 * (index % 2)
    return bytes(act), bytes(scales)


@pytest.mark.parametrize("x_dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("has_smooth", [True, False])
def test_finite_activations(x_dtype: str, has_smooth: bool) -> None:
    x, smooth = activations(17, 96, x_dtype)
    inverse = [fp32(1 / one) if has_smooth else 1.0 for one in smooth.tolist()]
    z = torch.tensor([[fp32(a * b) for a, b in zip(row, inverse, strict=True)] for row in x.tolist()])
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


def test_the_error_is_that_of_exact_quotients() -> None:
    """Root mean square of z - what codes and scales say, against ``quantize_nvfp4`` of the IEEE quotient."""
    x, smooth = activations(64, 4096, "bf16")
    exact = x.double() / smooth.double()
    quotient = quantize_nvfp4((x.float() / smooth).clamp(-2688, 2688))
    wanted = expected_outputs((x.float() / smooth).clamp(-2688, 2688) * smooth, smooth)
    ours = NVFP4Tensor(codes=wanted.act, scales=unblock_scales(wanted.ascales, 64, 4096))
    errors = [
        (dequantize_nvfp4(one, torch.float64) - exact.clamp(-2688, 2688)).norm().item()
        for one in (ours, quotient)
    ]
    assert abs(errors[0] / errors[1] - 1) < 1e-6


# -- lora_act_in --


def lora_problem(m: int = 20, k: int = 224, r: int = 16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(x, lora_down, the result rounded from exact rationals) in bf16."""
    draw = torch.Generator().manual_seed(m)
    x, down = torch.randn(m, k, generator=draw).bfloat16(), torch.randn(k, r, generator=draw).bfloat16()
    exact = [
        [
            float(sum(Fraction(a) * Fraction(b) for a, b in zip(row, column, strict=True)))
            for column in down.T.tolist()
        ]
        for row in x.tolist()
    ]
    return x, down, torch.tensor(exact, dtype=torch.float64).bfloat16()


def test_the_rounded_result_is_right_and_a_wrong_product_is_seen() -> None:
    x, down, right = lora_problem()
    verdict = check_lora(right, x, down, parts=4)
    assert verdict.ok and 0 < verdict.max_ratio < 1
    lost = x.clone()
    lost[7, 100] = 0
    wrong = (lost.double() @ down.double()).bfloat16()
    found = check_lora(wrong, x, down, parts=4, first_row=128)
    assert not found.ok and 0 < found.bad <= 16 and found.worst_index[0] == 135


def test_sums_kept_in_16_bits_are_seen() -> None:
    """Each within what a tolerance of several units would let pass, all together far off in the mean."""
    draw = torch.Generator().manual_seed(1)
    x, down = (
        torch.randn(64, 1024, generator=draw).bfloat16(),
        torch.randn(1024, 32, generator=draw).bfloat16(),
    )
    total = torch.zeros(64, 32, dtype=torch.bfloat16)
    for start in range(0, 1024, 16):
        part = x[:, start : start + 16].double() @ down[start : start + 16].double()
        total = (total.double() + part).bfloat16()
    assert not check_lora(total, x, down, parts=1).ok


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_must_not_be_finite(bad: float) -> None:
    x, down, got = lora_problem()
    x[3, 5] = bad
    assert not check_lora(got, x, down, parts=1).ok
    got[3] = float("nan")
    assert check_lora(got, x, down, parts=1).ok
    got[4, 0] = float("nan")
    assert check_lora(got, x, down, parts=1).bad == 1
