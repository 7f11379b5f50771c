"""A chain outside of the project: ``rowstats``, and again on what it wrote.

    half[i, j] = 2 x[i, j]      y[i, j] = 2 half[i, j]      before[i], count[i] = how many x[i, j], half[i, j] > 0

Its sizes have names of its own.
"""

from __future__ import annotations

import dataclasses

from kernel_space.composite.link import Link
from kernel_space.composite.operator import composite
from kernel_space.core.problem import Problem, size


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwiceProblem(Problem, operator="twice", example="256,1024"):
    """``rows`` of ``width`` elements."""

    rows: int = size(batch=True)
    width: int = size(multiple=2)


_FIELDS = {"m": "rows", "k": "width"}

OPERATOR = composite(
    name="twice",
    formula="y = 4 x, with the counts of both halves",
    problem=TwiceProblem,
    links=(
        Link(
            name="first",
            operator="rowstats",
            fields=_FIELDS,
            tensors={"y": "half", "count": "before"},
        ),
        Link(name="second", operator="rowstats", fields=_FIELDS, tensors={"x": "half"}),
    ),
)
