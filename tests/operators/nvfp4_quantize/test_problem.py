"""QuantizeProblem: what it takes and how it prints."""

from __future__ import annotations

import pytest

from kernel_space.core.errors import InputError
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem


def test_it_prints_as_it_parses() -> None:
    problem = QuantizeProblem.parse(" 4352, 3840", x_dtype="bf16", smooth="none")
    assert (problem.m, problem.k, str(problem)) == (4352, 3840, "4352,3840")
    assert QuantizeProblem.parse(str(problem), x_dtype="bf16", smooth="none") == problem
    assert str(problem.problem_class) == "x_dtype=bf16 smooth=none"


@pytest.mark.parametrize("text", ["", "1", "1,32,2", "-1,32", "1.5,32", "1,x"])
def test_a_shape_is_two_whole_numbers(text: str) -> None:
    with pytest.raises(InputError, match="two integers M,K"):
        QuantizeProblem.parse(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0,32", "M must be between 1 and 2147483520, got 0"),
        ("2147483521,32", "M must be between"),
        ("1,0", "K must be between 1 and 2147483584, got 0"),
        ("1,2147483616", "K must be between"),
        ("1,48", "K must be a multiple of 32, got 48; use 32 or 64"),
        ("1,16", "K must be a multiple of 32, got 16; use 32"),
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
