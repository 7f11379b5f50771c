"""How far problems of one operator are from each other: where a row may stand in, or a search may start."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from kernel_space.core.problem import Problem

# A kernel tuned for another batch loses 17 % for each doubling between them, one of another layer 3 % for each doubling
# of its sizes (docs/evidence/estimates.md): so many doublings of other sizes count as one of the batch's.
OTHERS_TO_ONE = 5
OTHER_OPTIONS = 0.25  # doublings of the batch: what rows of equal sizes and other options are put back by


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


def nearness_order(problem: Problem, other: Problem) -> tuple[Any, ...]:
    """Order of problems of one operator, nearest to ``problem`` first: by doublings between the batches and, for
    little, between other sizes. Of two equally near the larger batch; then by name.
    """
    batch = batch_names(problem)
    others = [name for name in problem.size_names() if name not in batch]
    apart = times_larger(problem, other, batch) ** OTHERS_TO_ONE * times_larger(problem, other, others)
    return apart, tuple(-getattr(other, name) for name in batch), str(other)


def shown_sizes(problem: Problem, names: Iterable[str]) -> str:
    """``M 4352``, or several of them."""
    return " ".join(f"{name.upper()} {getattr(problem, name)}" for name in names)


def shown_bucket(problem: Problem) -> str:
    """What is not batch: ``K=3840 N=3072 R=128 fp16/fp16``."""
    batch = batch_names(problem)
    sizes = [f"{name.upper()}={value}" for name, value in problem.sizes.items() if name not in batch]
    return " ".join([*sizes, "/".join(problem.options.values())]).strip()
