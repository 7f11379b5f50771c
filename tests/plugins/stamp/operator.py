"""An operator outside of the project whose kernel only stores a constant, so that builds of it are quick."""

from __future__ import annotations

import dataclasses
from typing import Any

from kernel_space.core.operator import Operator, Work
from kernel_space.core.problem import Problem, option, size
from kernel_space.core.signature import Out, Signature, Stream


@dataclasses.dataclass(frozen=True, kw_only=True)
class StampProblem(Problem, operator="stamp", example="32,0"):
    """``n`` elements; ``r`` only tells classes apart."""

    n: int = size(multiple=32, most=32)
    r: int = size(least=0, compiled=True)
    out_dtype: str = option("fp16", "bf16")


def inputs(problem: StampProblem, seed: int, source: str, device: Any) -> dict[str, Any]:
    return {}


def check(problem: StampProblem, tensors: Any, config: Any) -> dict[str, Any]:
    raise NotImplementedError("nobody asks whether a stamp is right")


OPERATOR = Operator(
    name="stamp",
    formula="y = a constant",
    problem=StampProblem,
    signature=Signature(Out("y", "int32", lambda problem: (problem.n,)), Stream()),
    kernels=("stamp", "other", "broken"),
    inputs=inputs,
    check=check,
    work=lambda problem: Work(operations={}),
)
