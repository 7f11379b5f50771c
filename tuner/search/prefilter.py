"""Proposals that a kernel's own formula cannot imagine near the best are not compiled.

A formula (``tuner.simulated.model``) is right about what a candidate cannot do, within a factor; it does not rank. A
kernel without one has every legal proposal compiled. What the filter loses is found by ``benchmarks/prefilter_loss.py``
and told in docs/evidence/prefilter.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kernel_space.composite.parts import parts_of
from kernel_space.core.config import KernelConfig
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
        self._best_us: dict[tuple[str, str], float] = {}  # of each kernel, in each link of a chain

    def rejection(self, legal: Legal, *, wanted: bool) -> Rejection | None:
        """Why ``legal`` is not worth compiling; never anything for one that is ``wanted``: the default, or named.

        Of a chain without a model of the whole each link is judged by itself: with a better link in its place, which
        the space holds too, the same chain is faster.
        """
        whole = modelled_us(legal.config, self._problem, self._machine)
        if whole is not None:
            judged = [self._judged("", legal.config.kernel, whole)]
        else:
            judged = [self._judged(*part) for part in self._links(legal.config)]
        return None if wanted else next(filter(None, judged), None)

    def _judged(self, link: str, kernel: str, us: float) -> Rejection | None:
        best_us = self._best_us[link, kernel] = min(self._best_us.get((link, kernel), math.inf), us)
        if us <= self._factor * best_us:
            return None
        return Rejection(
            PREFILTER,
            f"{link and f'its {link} is '}modelled at {us:.4g} us, more than {self._factor:g} x the best modelled "
            f"{best_us:.4g} us",
        )

    def _links(self, config: KernelConfig) -> Iterator[tuple[str, str, float]]:
        """(link, kernel, modelled time) of those links of a chain that have a model."""
        for link, part, own in parts_of(config, self._problem):
            if (us := modelled_us(part, own, self._machine)) is not None:
                yield link, part.kernel, us
