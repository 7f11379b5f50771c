"""Configs that are for problems within bounds: the default rule, designs, and what others published."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem

AT_LEAST, AT_MOST = "_at_least", "_at_most"


@dataclasses.dataclass(frozen=True)
class BoundedConfig:
    """A config for problems within bounds. ``when`` is made by ``bounds``; empty: always."""

    when: Mapping[str, int | str]
    config: KernelConfig
    reason: str

    def holds(self, problem: Problem) -> bool:
        return all(_holds(condition, bound, problem) for condition, bound in self.when.items())


def conditions(problem: type[Problem]) -> tuple[str, ...]:
    """What a bound of this problem type may be called: ``m_at_least``, ``m_at_most`` of every size, and its options."""
    sizes = (f"{size}{end}" for size in problem.size_names() for end in (AT_LEAST, AT_MOST))
    return (*sizes, *problem.option_names())


def bounds(when: Any, problem: type[Problem]) -> dict[str, int | str]:
    """``when`` of a YAML entry: a size condition -> whole number, an option -> one of its choices.

    Raises ``InputError`` for anything else.
    """
    if not isinstance(when or {}, dict):
        raise InputError(f"when must map {' '.join(conditions(problem))} to a bound, got {when!r:.80}")
    found = dict(when or {})
    for condition, bound in found.items():
        if not _can_hold(condition, bound, problem):
            raise InputError(
                f"a config is bounded by {' '.join(conditions(problem))}; sizes by a whole number, options by one of "
                f"their choices; got {condition}: {bound}"
            )
    return found


def _can_hold(condition: Any, bound: Any, problem: type[Problem]) -> bool:
    if condition not in conditions(problem):
        return False
    if condition in problem.option_names():
        return bound in problem.forms()[condition].choices
    return isinstance(bound, int) and not isinstance(bound, bool)


def _holds(condition: str, bound: int | str, problem: Problem) -> bool:
    if condition in problem.option_names():
        return getattr(problem, condition) == bound
    if condition.endswith(AT_LEAST):
        return getattr(problem, condition.removesuffix(AT_LEAST)) >= bound
    return getattr(problem, condition.removesuffix(AT_MOST)) <= bound
