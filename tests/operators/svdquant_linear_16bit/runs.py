"""What tests of all kernels of ``svdquant_linear_16bit`` do with a config and a problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernel_space.build.build import build
from kernel_space.check.one_problem import ProblemCheck
from kernel_space.check.result import CheckResult
from kernel_space.core.arch import SM90A
from kernel_space.core.registry import operator, parse_config
from kernel_space.core.rules import Legal, Rejection, legalize
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem

OPERATOR = operator("svdquant_linear_16bit")


def problem(shape: str, dtype: str = "bf16", **options: Any) -> HalfLinearProblem:
    return HalfLinearProblem.parse(shape, dtype=dtype, **options)


def legal(text: str, shape: HalfLinearProblem) -> Legal | Rejection:
    return legalize(parse_config(OPERATOR.name, SM90A, text), shape, SM90A)


def compiled(text: str, shape: HalfLinearProblem) -> tuple[Any, Any]:
    found = legal(text, shape)
    assert isinstance(found, Legal), found
    return build(found.config, shape.problem_class, SM90A), found.config


def checked(
    text: str, shape: HalfLinearProblem, *, sms: Callable[[Any], int], schedule: str = "random", ptx: str = ""
) -> CheckResult:
    """One run on this very problem, the first schedule's calls in a row. ``sms``: of a config, how many there are."""
    kernel, config = compiled(text, shape)
    check = ProblemCheck(
        kernel, config, shape, sms(config), check_races=True, seed=3, ptx=ptx or None, in_a_row=True
    )
    check.run(schedule, None)
    return check.result()
