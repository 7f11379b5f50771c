"""How far problems of one operator are from each other: where a row may stand in, or a search may start."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from kernel_space.core.problem import Problem


def times_larger(one: Problem, other: Problem, names: Iterable[str] | None = None) -> Fraction:
    """How many times the larger is the smaller, multiplied over the sizes ``names``, by default all: orders as the
    sum of the distances in log2 does, without rounding. To a size that may be 0 its multiple is added.
    """
    forms = one.forms()
    found = Fraction(1)
    for name in one.size_names() if names is None else names:
        floor = 0 if forms[name].least > 0 else forms[name].multiple
        first, second = getattr(one, name) + floor, getattr(other, name) + floor
        found *= Fraction(max(first, second), min(first, second))
    return found


def doublings(one: Problem, other: Problem) -> float:
    """Powers of two between the sizes, summed."""
    return math.log2(times_larger(one, other))


def batch_names(problem: Problem) -> tuple[str, ...]:
    """Sizes that change from call to call."""
    return tuple(name for name, form in problem.forms().items() if form.batch)


def batch_order(problem: Problem, other: Problem) -> tuple[Any, ...]:
    """Order of problems of one bucket, nearest to ``problem`` first; of two equally near the larger one."""
    names = batch_names(problem)
    return times_larger(problem, other, names), tuple(-getattr(other, name) for name in names)


def shown_sizes(problem: Problem, names: Iterable[str]) -> str:
    """``M 4352``, or several of them."""
    return " ".join(f"{name.upper()} {getattr(problem, name)}" for name in names)


def shown_bucket(problem: Problem) -> str:
    """What is not batch: ``K=3840 N=3072 R=128 fp16/fp16``."""
    batch = batch_names(problem)
    sizes = [f"{name.upper()}={value}" for name, value in problem.sizes.items() if name not in batch]
    return " ".join([*sizes, "/".join(problem.options.values())]).strip()
