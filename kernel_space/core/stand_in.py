"""A kernel that was compiled for other sizes may serve a problem whose inputs are adapted to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from kernel_space.core.problem import Problem

Adapt = Callable[[Mapping[str, Any]], dict[str, Any]]  # of input tensors by name


@dataclasses.dataclass(frozen=True, kw_only=True)
class StandIn:
    """What is launched in place of a problem, with the same outputs.

    ``problem``   of other compiled sizes; its options and its other sizes are those of the asked one
    ``adapt``     inputs of the asked problem -> those of ``problem``; None where they are the same
    ``distance``  what it costs, in doublings of a size, up to what is the same for all stand-ins of a problem
    ``note``      for people, how the inputs are adapted: ``R padded to 128``
    """

    problem: Problem
    adapt: Adapt | None = None
    distance: float = 0.0
    note: str = ""
