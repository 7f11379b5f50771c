"""Proposals that a kernel's own formula cannot imagine near the best are not compiled.

A formula (``tuner.simulated.model``) is right about what a candidate cannot do, within a factor; it does not rank. A
kernel without one has every legal proposal compiled. What the filter loses is found by ``benchmarks/prefilter_loss.py``
and told in docs/evidence/prefilter.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal, Rejection
from kernel_space.core.traits import Chip
from tuner.simulated.model import modelled_us

PREFILTER: Final = "prefilter"  # stands where a rule's name stands
FACTOR: Final = 1.75


def count_filtered(rejected: Mapping[Any, Rejection]) -> int:
    """How many of the points that a search left out were legal."""
    return sum(rejection.rule == PREFILTER for rejection in rejected.values())


def prefilter_fact(rejected: Mapping[Any, Rejection]) -> dict[str, str]:
    """One line for a report; none when nothing was filtered."""
    if not (count := count_filtered(rejected)):
        return {}
    return {
        "prefilter": f"{count} legal proposals not compiled: modelled at more than {FACTOR:g} x the best modelled"
    }


class Prefilter:
    """Judges proposals of one search, in their order: by the lowest modelled time of their kernel among those so far.

    Of their kernel only: models of two kernels err each in its own way, and one that flatters its kernel would keep
    the other from ever being compiled. Nothing is known of a kernel without a model, so all of it is tried.
    """

    def __init__(self, problem: Problem, machine: Chip, factor: float = FACTOR) -> None:
        self._problem, self._machine, self._factor = problem, machine, factor
        self._best_us: dict[str, float] = {}  # of each kernel

    def rejection(self, legal: Legal, *, wanted: bool) -> Rejection | None:
        """Why ``legal`` is not worth compiling; never anything for one that is ``wanted``: the default, or named."""
        if (us := modelled_us(legal.config, self._problem, self._machine)) is None:
            return None
        kernel = legal.config.kernel
        best_us = self._best_us[kernel] = min(self._best_us.get(kernel, math.inf), us)
        if wanted or us <= self._factor * best_us:
            return None
        return Rejection(
            PREFILTER,
            f"modelled at {us:.4g} us, more than {self._factor:g} x the best modelled {best_us:.4g} us",
        )
