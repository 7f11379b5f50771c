"""What each link of a chain runs: its config and its problem."""

from __future__ import annotations

from kernel_space.composite.config import CompositeConfig
from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator_of


def parts_of(config: KernelConfig, problem: Problem) -> list[tuple[str, KernelConfig, Problem]]:
    """(link, config, problem) of every link of a chain; nothing for a kernel that is no chain.

    Raises ``InputError`` where a link's contract has no such problem.
    """
    composed = operator_of(problem).composed
    if composed is None or not isinstance(config, CompositeConfig):
        return []
    return [(link.name, config.of(link.name), link.problem(problem)) for link in composed.links]
