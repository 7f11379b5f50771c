"""Outputs whose contract is bitwise: what counts as equal, for every dtype."""

from __future__ import annotations

import math

import pytest
import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.output_check import check_equal


def test_equal_bytes_are_right_whatever_they_stand_for() -> None:
    values = torch.tensor([math.nan, math.inf, -0.0, 1.0])
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.uint8):
        out = values.nan_to_num(0.0, 0.0, 0.0).to(dtype) if not dtype.is_floating_point else values.to(dtype)
        check = check_equal(out, out.clone())
        assert check.ok and check.bad == 0 and check.max_ratio == 0.0 and check.elements == 4


def test_the_first_difference_is_named() -> None:
    expected = torch.arange(12, dtype=torch.int32).view(3, 4)
    out = expected.clone()
    out[1, 2], out[2, 3] = -5, 0
    check = check_equal(out, expected)
    assert not check.ok and (check.bad, check.worst_index) == (2, (1, 2))
    assert (check.got, check.expected, check.max_ratio, check.max_error) == (-5, 6, math.inf, 11)
    assert str(check) == "2 of 12 elements differ; the first at [1, 2]: got -5, expected 6"


def test_signs_of_zero_and_payloads_of_nan_count() -> None:
    assert check_equal(torch.tensor([-0.0]), torch.tensor([0.0])).bad == 1
    nans = torch.tensor([0x7FC00001, 0x7FC00000], dtype=torch.int32).view(torch.float32)
    assert check_equal(nans[:1], nans[1:]).bad == 1


def test_an_output_without_elements_is_right() -> None:
    assert check_equal(torch.empty(0, 3, dtype=torch.int32), torch.empty(0, 3, dtype=torch.int32)).ok


def test_another_dtype_or_shape_is_refused() -> None:
    with pytest.raises(InputError, match=r"the output must be int32 \[4\], got float32 \[4\]"):
        check_equal(torch.zeros(4), torch.zeros(4, dtype=torch.int32))
