"""The oracle of ``svdquant_linear_fp8``: what it accepts and what it refuses, of results made by hand; peaks."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from kernel_space.operators.nvfp4_quantize.packing import unpack_lora_down
from kernel_space.operators.svdquant_linear_fp8.peaks import SLACK, row_peaks
from kernel_space.operators.svdquant_linear_fp8.reference import Weights, layer, quantized_rows
from tests.operators.svdquant_linear_fp8.runs import (
    DTYPES,
    OPERATOR,
    PLAIN,
    Tensors,
    activated_by_hand,
    e4m3_bytes,
    inputs,
    legal,
    merged_by_hand,
    problem,
    rows_by_hand,
    sums_by_hand,
    value_of,
)

SIZES = "21,1056,144,48"


class Case:
    """Operands and what is multiplied, float64."""

    def __init__(self, shape: str = SIZES, dtype: str = "bf16", activation: str = "none") -> None:
        self.sizes = problem(shape, dtype, activation=activation)
        self.tensors = inputs(self.sizes)
        x8, self.scales = rows_by_hand(self.tensors["x"])
        self.x8 = value_of(x8)
        self.merged = value_of(e4m3_bytes(merged_by_hand(self.tensors, self.sizes).value))
        found: Any = legal(PLAIN, self.sizes)
        self.config = found.config

    def y(self, **instead: torch.Tensor) -> torch.Tensor:
        """Rounded once; ``x8``, ``merged``, ``scales`` or ``wpeak`` in place of what is right."""
        parts = {"x8": self.x8, "merged": self.merged, "scales": self.scales, **self.tensors, **instead}
        columns = parts["wpeak"].double() / 448 * parts["wcscale"].double()
        sums = parts["x8"] @ parts["merged"].T * parts["scales"].double()[:, None] * columns
        made = activated_by_hand(sums + parts["bias"].double(), self.sizes.activation)
        return made.to(DTYPES[self.sizes.dtype])

    def check(self, y: torch.Tensor) -> Any:
        return OPERATOR.check(self.sizes, {**self.tensors, "y": y}, self.config)["y"]


@functools.cache
def usual() -> Case:
    return Case()


@pytest.mark.parametrize(
    ("shape", "dtype", "activation"),
    [
        (SIZES, "bf16", "none"),
        ("1100,96,24,0", "bf16", "none"),  # rows in more than one part
        ("9,352,144,128", "fp16", "gelu_tanh"),
        ("9,352,144,16", "bf16", "silu"),
        ("9,352,144,16", "fp16", "swiglu"),
    ],
)
def test_an_exact_result_is_right_by_far(shape: str, dtype: str, activation: str) -> None:
    case = Case(shape, dtype, activation)
    check = case.check(case.y())
    assert check.ok and check.max_ratio < 0.6, check
    assert case.check(layer(case.sizes, case.tensors)).ok


def test_what_the_oracle_multiplies_is_what_is_multiplied_by_hand() -> None:
    case = usual()
    rows = quantized_rows(case.tensors["x"])
    assert torch.equal(rows.values.double(), case.x8) and torch.equal(rows.scale, case.scales)
    merged, doubt = Weights(case.sizes, case.tensors).merged()
    differs = merged.double() != case.merged
    assert (doubt[differs] > 0).all() and differs.double().mean() < 1e-4
    assert (doubt > 0).double().mean() < 2e-3


def left_out(case: Case) -> torch.Tensor:
    x8 = case.x8.clone()
    x8[:, 512:544] = 0
    return case.y(x8=x8)


def scaled_twice(case: Case) -> torch.Tensor:
    scales = case.scales.clone()
    scales[7] *= 2
    return case.y(scales=scales)


def swapped(case: Case) -> torch.Tensor:
    """In one group of 16, in x alone."""
    x8 = case.x8.clone()
    x8[:, [37, 40]] = x8[:, [40, 37]]
    return case.y(x8=x8)


def in_another_order(case: Case) -> torch.Tensor:
    """Of all groups, in x alone: as if it had the plain order and weights their own."""
    order = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]
    x8 = case.x8.view(case.sizes.m, -1, 16)[:, :, order].reshape(case.sizes.m, -1)
    return case.y(x8=x8)


def without_wpeak(case: Case) -> torch.Tensor:
    return case.y(wpeak=torch.full_like(case.tensors["wpeak"], 448.0))


def tile_not_written(case: Case) -> torch.Tensor:
    y = case.y()
    y[16:, 64:128] = torch.nan
    return y


def another_row(case: Case) -> torch.Tensor:
    y = case.y()
    y[5] = y[6]
    return y


def without_branch(case: Case) -> torch.Tensor:
    tensors = {**case.tensors, "lora_up": torch.zeros_like(case.tensors["lora_up"])}
    return case.y(merged=value_of(e4m3_bytes(merged_by_hand(tensors, case.sizes).value)))


WRONG = [
    left_out, scaled_twice, swapped, in_another_order, without_wpeak, tile_not_written, another_row, without_branch,
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=lambda one: one.__name__)
def test_a_wrong_result_is_refused(wrong: Any) -> None:
    case = usual()
    check = case.check(wrong(case))
    assert not check.ok, check


def test_one_element_that_is_off_by_more_than_its_tolerance_is_refused() -> None:
    case = usual()
    y = case.y()
    check = case.check(y)
    row, column = check.worst_index
    y[row, column] += 2 * check.tolerance
    assert not case.check(y).ok


# -- peaks --


def most_by_hand(tensors: Tensors, sizes: Any) -> torch.Tensor:
    """float64 ``[N]``: the largest magnitude of each row of merged weights."""
    unit = {**tensors, "wpeak": torch.full((sizes.n,), 448.0)}
    return merged_by_hand(unit, sizes).value.abs().amax(1)


def peaks_of(tensors: Tensors) -> torch.Tensor:
    return row_peaks(tensors["wscales"], tensors["smooth"], tensors["lora_down"], tensors["lora_up"])


@pytest.mark.parametrize("shape", ["1,352,136,48", "1,96,72,0", "1,1056,264,128", "1,32,8,16"])
@pytest.mark.parametrize("source", ["gaussian", "scales"])
def test_peaks_bound_every_weight(shape: str, source: str) -> None:
    for dtype in DTYPES:
        sizes = problem(shape, dtype)
        tensors = OPERATOR.inputs(sizes, 5, source, "cpu")
        most, peaks = most_by_hand(tensors, sizes), peaks_of(tensors).double()
        assert (peaks >= most).all()
        assert torch.equal(peaks.float(), tensors["wpeak"])


@pytest.mark.parametrize("shape", ["1,352,136,48", "1,1056,264,128"])
def test_peaks_are_not_far_too_large(shape: str) -> None:
    """Of usual weights: three of E4M3's fifteen binary orders are spent on the bound at most."""
    sizes = problem(shape)
    tensors = inputs(sizes)
    assert (peaks_of(tensors).double() <= 8 * most_by_hand(tensors, sizes)).all()


def test_peaks_are_the_largest_weight_where_there_is_no_branch_and_nothing_to_smooth() -> None:
    """Every block has a code of 6."""
    sizes = problem("1,352,136,0")
    tensors = inputs(sizes)
    tensors["smooth"] = torch.ones_like(tensors["smooth"])
    tensors["wgt"][:, ::8] |= 0x07
    ratio = peaks_of(tensors).double() / most_by_hand(tensors, sizes)
    assert (ratio >= 1).all() and (ratio <= SLACK * (1 + 2.0**-22)).all()


def test_a_row_of_zeros_has_a_peak_too() -> None:
    sizes = problem("1,352,136,0")
    tensors = inputs(sizes)
    tensors["wscales"].zero_()
    assert torch.equal(peaks_of(tensors), torch.full((136,), 2.0**-100))


def test_the_branch_of_the_bound_is_cauchy_schwarz() -> None:
    """A row of up that is parallel to a column of down reaches it."""
    sizes = problem("1,352,136,16")
    tensors = inputs(sizes)
    tensors["wscales"].zero_()
    down = unpack_lora_down(tensors["lora_down"], 352)
    longest = int(torch.linalg.vector_norm(down.double(), dim=1).argmax())
    tensors["lora_up"][:] = down[longest]
    ratio = peaks_of(tensors).double() / most_by_hand(tensors, sizes)
    assert (ratio >= 1).all() and (ratio <= SLACK * (1 + 2.0**-18)).all()


def test_sums_of_a_case_are_those_of_the_layer() -> None:
    """Both ways by hand are one."""
    case = usual()
    sums = sums_by_hand(case.tensors, case.sizes).bfloat16()
    assert torch.equal(sums, case.y())
