"""An operator outside of the project with sizes and options of its own, for what is written down of it.

Its kernel is that of ``stamp`` and computes nothing of the kind.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from kernel_space.core.operator import Operator, Work
from kernel_space.core.problem import Problem, option, size
from kernel_space.core.signature import Out, Signature, Stream


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairProblem(Problem, operator="pair", example="8,64,4"):
    """``batch`` rows of ``width`` elements in ``groups``; ``order`` and ``carry`` are variants of the formula."""

    batch: int = size(batch=True)
    width: int = size(multiple=16)
    groups: int = size(least=0, most=64, multiple=4, compiled=True, zero="none")
    order: str = option("up", "down")
    carry: str = option("no", "yes")


def inputs(problem: PairProblem, seed: int, source: str, device: Any) -> dict[str, Any]:
    return {}


def check(problem: PairProblem, tensors: Any, config: Any) -> dict[str, Any]:
    raise NotImplementedError("nobody asks whether a pair is right")


OPERATOR = Operator(
    name="pair",
    formula="low, high = a constant",
    problem=PairProblem,
    signature=Signature(
        Out("low", "int32", lambda problem: (problem.batch, problem.width)),
        Out("high", "int32", lambda problem: (problem.batch,)),
        Stream(),
    ),
    kernels=("tall",),
    inputs=inputs,
    check=check,
    work=lambda problem: Work(operations={"fp32": problem.batch * problem.width}),
)
