from __future__ import annotations

import math
import struct
from fractions import Fraction
from typing import Any

import pytest
import torch

from kernel_space.core.errors import InputError
from kernel_space.operators.svdquant_gemm.packing import PackedSVDQuant, pack_svdquant_weights
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.numerics import nvfp4_oracle as oracle

N, K, R = 136, 96, 32


def weights(**changes: Any) -> dict[str, Any]:
    random = torch.Generator().manual_seed(0)
    arguments = {
        "wgt": torch.randint(0, 256, (N, K // 2), dtype=torch.uint8, generator=random),
        "wscales": torch.randint(0x20, 0x50, (N, K // 16), dtype=torch.uint8, generator=random).view(
            torch.float8_e4m3fn
        ),
        "lora_up": torch.randn(N, R, generator=random).half(),
        "wcscale": torch.randn(N, generator=random).sign() * (torch.rand(N, generator=random) + 0.5),
        "bias": torch.randn(N, generator=random).half(),
        "alpha": 0.25,
    }
    return arguments | changes


def pack(**changes: Any) -> PackedSVDQuant:
    return pack_svdquant_weights(**weights(**changes))


@pytest.mark.parametrize("lora_dtype, digits", [("fp16", 11), ("bf16", 8)])
def test_folding_by_hand_arithmetic(lora_dtype: str, digits: int) -> None:
    source = weights(alpha=1 / 3)
    packed = pack(alpha=1 / 3, lora_dtype=lora_dtype)
    assert packed.lora_up.dtype == {"fp16": torch.float16, "bf16": torch.bfloat16}[lora_dtype]
    for row in (0, 1, 77, N - 1):
        factor = source["wcscale"][row].item() / 3
        assert packed.wcscale[row].item() == pytest.approx(factor, rel=2.0**-24)
        for column in (0, 5, R - 1):
            folded = source["lora_up"][row, column].item() / factor
            assert packed.lora_up[row, column].item() == pytest.approx(folded, rel=2.0**-digits * 1.001)
    assert packed.bias.tolist() == source["bias"].float().tolist()


def test_layout_of_the_result() -> None:
    source, packed = weights(), pack()
    assert torch.equal(packed.wgt, source["wgt"])
    assert packed.wscales.shape == (2 * 2 * 512,)
    for row, group in [(0, 0), (31, 5), (32, 0), (100, 3), (127, 4), (135, 5)]:
        byte = packed.wscales[oracle.blocked_offset(row, group, K // 16)]
        assert byte == source["wscales"].view(torch.uint8)[row, group]
    assert (packed.wcscale.dtype, packed.bias.dtype) == (torch.float32, torch.float32)
    assert (packed.n, packed.k, packed.r, packed.lora_dtype) == (N, K, R, "fp16")
    assert packed.problem_class("bf16") == GemmProblem.class_of(r=R, lora_dtype="fp16", out_dtype="bf16")
    assert all(
        x.is_contiguous() for x in (packed.wgt, packed.wscales, packed.lora_up, packed.wcscale, packed.bias)
    )


def test_views_become_contiguous_and_the_input_is_not_written() -> None:
    source = weights()
    before = {name: value.clone() for name, value in source.items() if isinstance(value, torch.Tensor)}
    strided = source | {name: source[name].T.contiguous().T for name in ("wgt", "lora_up")}
    packed = pack_svdquant_weights(**strided)
    assert packed.wgt.is_contiguous() and packed.lora_up.is_contiguous()
    assert torch.equal(packed.lora_up, pack().lora_up)
    packed.wcscale.fill_(0.0)
    packed.bias.fill_(0.0)
    for name, value in before.items():
        assert torch.equal(source[name].view(torch.uint8), value.view(torch.uint8))


@pytest.mark.parametrize("alpha", [torch.tensor(0.25), torch.tensor([0.25]), 0.25])
def test_alpha_may_be_a_tensor_of_one_element(alpha: float | torch.Tensor) -> None:
    assert torch.equal(pack(alpha=alpha).wcscale, weights()["wcscale"] / 4)


def test_without_lora_and_bias() -> None:
    for lora_up in (None, torch.zeros(N, 0, dtype=torch.float16)):
        packed = pack(lora_up=lora_up, bias=None)
        assert packed.lora_up.shape == (N, 0) and packed.lora_dtype == "fp16" and packed.r == 0
        assert packed.bias.tolist() == [0.0] * N
    assert pack(lora_up=None, lora_dtype="bf16").lora_dtype == "bf16"


def test_an_fp32_bias_is_kept_exactly() -> None:
    bias = torch.linspace(-1e5, 1e5, N)
    assert torch.equal(pack(bias=bias).bias, bias)


def with_row(tensor: torch.Tensor, row: int, value: float) -> torch.Tensor:
    changed = tensor.clone()
    changed[row] = value
    return changed


@pytest.mark.parametrize(
    "value, shown",
    [(0.0, "0.0"), (-0.0, "-0.0"), (math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "nan"), (1e-38, "2.5")],
)
def test_a_factor_that_cannot_be_divided_by_is_named(value: float, shown: str) -> None:
    wcscale = with_row(weights()["wcscale"], 129, value)  # 1e-38 * 0.25 is subnormal
    with pytest.raises(
        InputError, match=rf"alpha \* wcscale must be .* got {shown}.* at row 129 \(alpha 0.25, wcscale"
    ):
        pack(wcscale=wcscale)
    with pytest.raises(InputError, match="at row 129"):
        pack(wcscale=wcscale, lora_up=None)


@pytest.mark.parametrize("alpha", [0.0, math.nan, math.inf, 1e300])
def test_an_alpha_that_ruins_every_factor_names_the_first_row(alpha: float) -> None:
    with pytest.raises(InputError, match="at row 0"):
        pack(alpha=alpha)


def test_a_folded_lora_up_beyond_its_dtype_is_named() -> None:
    source = weights()
    lora_up, wcscale = with_row(source["lora_up"], 77, 0.5), with_row(source["wcscale"], 77, 2.0**-20)
    lora_up[77, 3] = -2.0  # folded: -2 / 2^-22 = -8388608; its neighbours are 2^21, also too large for fp16
    lora_up[77, :3] = 0.0
    with pytest.raises(
        InputError, match=r"finite in fp16, got -inf at row 77, column 3 \(lora_up -2.0, .* 2.38"
    ):
        pack(lora_up=lora_up, wcscale=wcscale)
    folded = pack(lora_up=lora_up, wcscale=wcscale, lora_dtype="bf16").lora_up
    assert folded[77, 2:5].tolist() == [0.0, -8388608.0, 2097152.0]


def lost_of_row(values: list[float], factor: float) -> float:
    """Share of a row's 2-norm that rounding ``value / factor`` to fp16, the struct module's, takes."""
    exact = [Fraction(value) / Fraction(factor) for value in values]
    kept = [Fraction(struct.unpack("e", struct.pack("e", float(value)))[0]) for value in exact]
    lost = sum((a - b) ** 2 for a, b in zip(exact, kept, strict=True))
    return math.sqrt(lost / sum(value**2 for value in exact))


@pytest.mark.parametrize(
    ("size", "legal"), [(2.0**-12, True), (2.0**-17, True), (2.0**-21, False), (1e-12, False)]
)
def test_a_folded_lora_up_that_underflows_is_named(size: float, legal: bool) -> None:
    """Folded, a row of about ``size``; subnormal numbers of fp16 are 2^-24 apart."""
    source = weights(alpha=1.0)
    lora_up, wcscale = source["lora_up"].double(), with_row(source["wcscale"], 77, 4.0)
    lora_up[77] *= 4 * size / lora_up[77].abs().max()
    lost = lost_of_row(lora_up[77].tolist(), 4.0)
    assert (lost <= 0.01) == legal
    change = {"lora_up": lora_up, "wcscale": wcscale, "alpha": 1.0, "lora_dtype": "fp16"}
    if legal:
        assert pack(**change).lora_up[77].any()
        return
    named = f"row 77 loses {100 * lost:.3g} %"
    with pytest.raises(InputError, match=rf"99 % .* in fp16, {named} .*alpha \* wcscale 4.0.*bf16") as error:
        pack(**change)
    assert "\n" not in str(error.value)
    bf16 = pack(**change | {"lora_dtype": "bf16"}).lora_up[77].double()
    assert bf16.tolist() == pytest.approx((lora_up[77] / 4).tolist(), rel=2.0**-8)


def test_a_row_too_small_for_the_squares_of_float64_is_lost_too() -> None:
    lora_up = weights()["lora_up"].double()
    lora_up[5] *= 1e-250
    with pytest.raises(InputError, match="row 5 loses 100 %"):
        pack(lora_up=lora_up, lora_dtype="bf16")


def test_zeros_lose_nothing_and_a_small_element_costs_its_row_little() -> None:
    lora_up = weights()["lora_up"]
    lora_up[5] = 0.0
    lora_up[6, :4] = 2.0**-24
    packed = pack(lora_up=lora_up, alpha=16.0)
    assert not packed.lora_up[5].any() and not packed.lora_up[6, :4].any()


def test_lora_up_that_is_not_finite_is_named() -> None:
    lora_up = weights()["lora_up"]
    lora_up[5, 31] = math.nan
    with pytest.raises(InputError, match="got nan at row 5, column 31"):
        pack(lora_up=lora_up)


def test_bias_and_scales_that_are_not_finite_are_named() -> None:
    with pytest.raises(InputError, match="bias must be finite in fp32, got inf at row 9"):
        pack(bias=with_row(weights()["bias"], 9, math.inf))
    with pytest.raises(InputError, match="bias must be finite in fp32, got 1e\\+300 at row 9"):
        pack(bias=with_row(weights()["bias"].double(), 9, 1e300))
    wscales = weights()["wscales"]
    wscales.view(torch.uint8)[12, 4] = 0x7F
    with pytest.raises(
        InputError, match="wscales must be finite and not negative, got nan at row 12, group 4"
    ):
        pack(wscales=wscales)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"wgt": torch.zeros(N, K // 2)}, r"wgt must be uint8 \[136, 48\], got float32 \[136, 48\]"),
        ({"wgt": torch.zeros(N, dtype=torch.uint8)}, r"wgt must be uint8 .* got uint8 \[136\]"),
        ({"wgt": torch.zeros(N, 56, dtype=torch.uint8)}, "K must be a multiple of 32, got 112"),
        (
            {"wgt": torch.zeros(13, 48, dtype=torch.uint8), "lora_up": None},
            "N must be a multiple of 8, got 13",
        ),
        ({"wscales": torch.ones(N, 6)}, r"wscales must be float8_e4m3fn \[136, 6\], got float32"),
        ({"wscales": torch.ones(N, 5).to(torch.float8_e4m3fn)}, r"\[136, 6\], got float8_e4m3fn \[136, 5\]"),
        ({"lora_up": torch.ones(N)}, r"lora_up must be .* got float32 \[136\]"),
        ({"lora_up": torch.ones(N - 8, R)}, r"lora_up must be .* \[136, 32\], got float32 \[128, 32\]"),
        ({"lora_up": torch.ones(N, 24).half()}, "R must be a multiple of 16, got 24"),
        ({"lora_up": torch.ones(N, 528).half()}, "R must be between 0"),
        ({"lora_up": torch.ones(N, R)}, "lora_dtype must be given .fp16 or bf16. when lora_up is float32"),
        ({"lora_dtype": "fp8"}, "lora_dtype must be one of fp16, bf16, got 'fp8'"),
        ({"lora_dtype": "fp8", "lora_up": None}, "lora_dtype must be one of fp16, bf16, got 'fp8'"),
        ({"wcscale": torch.ones(N, 1)}, r"wcscale must be .* \[136\], got float32 \[136, 1\]"),
        ({"bias": torch.ones(8)}, r"bias must be .* \[136\], got float32 \[8\]"),
        ({"alpha": torch.ones(2)}, r"alpha must be one number, got a tensor \[2\]"),
    ],
)
def test_each_shape_and_dtype_error_is_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        pack(**changes)
    assert "\n" not in str(error.value)
