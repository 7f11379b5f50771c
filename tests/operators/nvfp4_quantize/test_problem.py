"""QuantizeProblem: what it takes and how it prints."""

from __future__ import annotations

import pytest

from kernel_space.core.errors import InputError
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem


def test_it_prints_as_it_parses() -> None:
    problem = QuantizeProblem.parse(" 4352, 3840, 128", x_dtype="bf16", smooth="none")
    assert (problem.m, problem.k, problem.r, str(problem)) == (4352, 3840, 128, "4352,3840,128")
    assert QuantizeProblem.parse(str(problem), x_dtype="bf16", smooth="none") == problem
    assert str(problem.problem_class) == "r=128 x_dtype=bf16 smooth=none"


@pytest.mark.parametrize("text", ["", "1", "1,32", "1,32,16,2", "-1,32,0", "1.5,32,0", "1,x,0"])
def test_a_shape_is_three_whole_numbers(text: str) -> None:
    with pytest.raises(InputError, match="three integers M,K,R"):
        QuantizeProblem.parse(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0,32,0", "M must be between 1 and 2147483520, got 0"),
        ("2147483521,32,0", "M must be between"),
        ("1,0,0", "K must be between 1 and 2147483584, got 0"),
        ("1,2147483616,0", "K must be between"),
        ("1,48,0", "K must be a multiple of 32, got 48; use 32 or 64"),
        ("1,16,0", "K must be a multiple of 32, got 16; use 32"),
        ("1,32,528", "R must be between 0 \\(no LoRA-down\\) and 512, got 528"),
        ("1,32,24", "R must be a multiple of 16, got 24; use 16 or 32"),
    ],
)
def test_sizes(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        QuantizeProblem.parse(text)


def test_dtypes() -> None:
    with pytest.raises(InputError, match="x_dtype must be one of fp16, bf16, fp32, got 'fp8'"):
        QuantizeProblem.parse("1,32,0", x_dtype="fp8")
    with pytest.raises(InputError, match="smooth must be one of fp32, none"):
        QuantizeProblem.parse("1,32,0", smooth="fp16")


def test_lora_down_needs_16_bits() -> None:
    """The tensor core has no fp32."""
    with pytest.raises(
        InputError, match="x_dtype must be fp16 or bf16 with R > 0, .*; got fp32 with R=16; use R=0"
    ):
        QuantizeProblem.parse("1,32,16", x_dtype="fp32")
    assert QuantizeProblem.parse("1,32,0", x_dtype="fp32").r == 0
