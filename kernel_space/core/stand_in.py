"""A kernel that was compiled for other sizes may serve a problem whose inputs are adapted to it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernel_space.core.problem import Problem

Adapt = Callable[[Mapping[str, Any]], dict[str, Any]]  # of input tensors by name


def is_compiled(form: Any) -> bool:
    """Whether an object is compiled for one value of this size."""
    return bool(form.compiled and not form.choices)


def compiled_sizes(problem: Problem) -> dict[str, int]:
    """The sizes for which an object of ``problem`` is compiled."""
    return {name: getattr(problem, name) for name, form in problem.forms().items() if is_compiled(form)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StandIn:
    """What is launched in place of a problem, with the same outputs.

    ``problem``   of other compiled sizes; its options and its other sizes are those of the asked one
    ``adapt``     inputs of the asked problem -> those of ``problem``; None where they are the same
    ``distance``  what it costs, in doublings of a size, up to what is the same for all stand-ins of a problem
    ``us``        what ``adapt`` takes on the device at every call, an estimate
    ``note``      for people, how the inputs are adapted: ``R padded to 128``
    """

    problem: Problem
    adapt: Adapt | None = None
    distance: float = 0.0
    us: float = 0.0
    note: str = ""


Widest = Mapping[
    str, int | Sequence[int]
]  # compiled size -> one that serves all smaller ones, or several, ascending


def widest_of(problem: Problem, widest: Widest) -> list[Problem]:
    """``problem`` with these sizes in place of its own, every combination of them, the smallest first."""
    steps = [(size,) if isinstance(size, int) else tuple(size) for size in widest.values()]
    return [
        dataclasses.replace(problem, **dict(zip(widest, sizes, strict=True)))
        for sizes in itertools.product(*steps)
    ]


def can_hold(known: Problem, problem: Problem, widest: Widest) -> bool:
    """Whether each of these sizes of ``known`` is at least that of ``problem``."""
    return all(getattr(known, name) >= getattr(problem, name) for name in widest)
