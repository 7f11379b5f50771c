"""What ``whole_nvfp4``, ``sliced_nvfp4`` and ``staged_nvfp4`` are asked: x to the values of its codes, y of them."""

from __future__ import annotations

import re

import torch

from kernel_space.build.build import build
from kernel_space.check.problem import exercises
from kernel_space.check.validate import check_candidate
from kernel_space.core.arch import SM90A
from kernel_space.core.rules import Legal
from kernel_space.launch.capture import capture
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from tests.operators.svdquant_linear.runs import (
    DTYPES,
    OPERATOR,
    checked,
    edges,
    is_the_layer,
    launched,
    odd_smooth,
    problem,
    read_x,
    y_by_hand,
)
from tests.operators.svdquant_linear_16bit.runs import compiled, legal


def y_is_the_layer_by_hand(text: str, dtype: str) -> None:
    shape = problem("21,672,136,48", dtype)
    small = torch.linspace(0.01, 0.02, 136)  # or y is beyond fp16
    is_the_layer(launched(text, shape, wcscale=small), shape)


def x_is_the_values_of_its_codes(text: str, dtype: str) -> None:
    """To the bit."""
    x, smooth = edges()
    found, wanted = read_x(text, x.to(DTYPES[dtype]), smooth)
    assert torch.equal(found, wanted)


def smooth_is_divided_for(text: str) -> None:
    """Where one step from the chip's reciprocal may not be right."""
    found, wanted = read_x(text, *odd_smooth())
    assert torch.equal(found, wanted)


def what_is_no_number_makes_its_rows_none(text: str, shape: LinearProblem, value: float) -> None:
    """And no other row."""
    x = OPERATOR.inputs(shape, 3, "gaussian", "cpu")["x"].clone()
    x[4, 100] = value
    tensors = launched(text, shape, x=x)
    assert tensors["y"][4].isnan().all()
    others = torch.arange(shape.m) != 4
    wanted = y_by_hand(tensors, shape)[others]
    assert (tensors["y"][others].double() - wanted).norm() / wanted.norm() < 2**-8


def y_is_right(text: str, shape: LinearProblem, schedule: str = "random") -> None:
    result = checked(text, shape, sms=16, schedule=schedule)
    assert result.ok, str(result)


def it_ends_on_fewer_sms(text: str, shape: LinearProblem, sms: int) -> None:
    """Than it has clusters at once."""
    result = checked(text, shape, sms=sms, schedule="eager")
    assert result.ok, str(result)


def what_a_check_runs_on_is_legal(text: str) -> None:
    shape = problem("16,256,264,128", activation="gelu_tanh")
    found = legal(text, shape)
    assert isinstance(found, Legal), found
    small = exercises(found.config, shape, SM90A)
    assert small and all(isinstance(legal(text, one), Legal) for one, _ in small)


def all_that_a_search_checks_is_right(text: str, shape: LinearProblem) -> None:
    kernel, config = compiled(text, shape)
    result = check_candidate(kernel, config, shape)
    assert result.ok, str(result)
    assert result.bitwise
    assert result.runs[0].calls > 1


def the_budget_is_what_the_launch_asks_for(text: str, r: int) -> None:
    shape = problem(f"17,672,72,{r}")
    found = legal(text, shape)
    assert isinstance(found, Legal), found
    kernel = build(found.config, shape.problem_class, SM90A)
    pointers = {name: 1 << 20 for name in OPERATOR.signature.pointers}
    (launch,) = capture(kernel, *OPERATOR.signature.values(shape, pointers, clusters=2))
    assert launch.smem_bytes == found.budget.smem_bytes <= found.budget.smem_limit


def a_broken_kernel_is_seen(
    text: str, shape: LinearProblem, pattern: str, into: str, *, sms: int = 0
) -> None:
    changed, found = re.subn(pattern, into, compiled(text, shape)[0].ptx)
    assert found
    assert not checked(text, shape, sms=sms, ptx=changed).ok
