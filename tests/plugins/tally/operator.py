"""An operator outside of the project with a problem of its own and two kernels, whose points can be counted by hand.

Nothing of it is ever compiled: it is for tests of what may be tried, not of what runs.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from kernel_space.core.operator import Operator, Work
from kernel_space.core.problem import Problem, option, size
from kernel_space.core.signature import In, Out, Signature, Size, Stream


@dataclasses.dataclass(frozen=True, kw_only=True)
class TallyProblem(Problem, operator="tally", example="40,256"):
    """``rows`` of ``width`` elements are counted."""

    rows: int = size(batch=True)
    width: int = size(multiple=32)
    kind: str = option("plain", "signed")


def inputs(problem: TallyProblem, seed: int, source: str, device: Any) -> dict[str, Any]:
    raise NotImplementedError("a tally is never run")


def check(problem: TallyProblem, tensors: Any, config: Any) -> dict[str, Any]:
    raise NotImplementedError("a tally is never run")


OPERATOR = Operator(
    name="tally",
    formula="y = count of x",
    problem=TallyProblem,
    signature=Signature(
        In("x", "int8", lambda problem: (problem.rows, problem.width)),
        Out("y", "int32", lambda problem: (problem.rows,)),
        Size("rows"),
        Stream(),
    ),
    kernels=("wide", "deep"),
    inputs=inputs,
    check=check,
    work=lambda problem: Work(operations={"int8": problem.rows * problem.width}),
)
