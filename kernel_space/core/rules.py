"""Legality, for every kernel: ``legalize`` asks the rules of the kernel whose config it is given.

It also makes spellings of one kernel one config: ``auto`` becomes a number, and knobs without effect take one value.
What it returns is hashed, cached, journalled and tabled. The rules themselves are the kernel's own.
"""

from __future__ import annotations

import dataclasses

from kernel_space.core.arch import Arch
from kernel_space.core.budget import Budget, Table
from kernel_space.core.config import KernelConfig
from kernel_space.core.kernel import Kernel
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernel_of


@dataclasses.dataclass(frozen=True)
class Rejection:
    """A config that is not legal: the rule's name and the reason with its numbers."""

    rule: str
    reason: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Legal:
    """A legal config: resolved (no ``auto``), canonical, with its budget."""

    config: KernelConfig
    budget: Budget


def legalize(config: KernelConfig, problem: Problem, arch: Arch) -> Legal | Rejection:
    """Resolve, canonicalise and check ``config`` for ``problem`` on ``arch``."""
    spec = _kernel(config, problem, arch)
    if rejection := knob_rejection(config, problem, arch):
        return rejection
    config = spec.solve_stages(spec.canonical(config, problem), problem.problem_class, arch)
    taken = spec.budget(config, problem.problem_class, arch)
    for resource in spec.capacities:
        if taken.over(resource) > 0:
            return Rejection(f"{resource}_capacity", _capacity_reason(taken.table(resource)))
    return Legal(config, taken)


def knob_rejection(config: KernelConfig, problem: Problem, arch: Arch) -> Rejection | None:
    """The rule, other than the capacities, that ``config`` breaks for ``problem``. Reads no layouts."""
    for name, rule in _kernel(config, problem, arch).knob_rules.items():
        if reason := rule(config, problem):
            return Rejection(name, reason)
    return None


def _kernel(config: KernelConfig, problem: Problem, arch: Arch) -> Kernel:
    found = kernel_of(config, problem)
    if arch.name not in found.archs:
        raise TypeError(f"{found.full_name} is for {', '.join(found.archs)}, not for {arch.name}")
    return found


def _capacity_reason(table: Table) -> str:
    parts = ", ".join(f"{row.name} {row.total}" for row in table.rows)
    return (
        f"{table.title} must hold {table.total} {table.unit} but has {table.limit}, over by {table.over} "
        f"({parts}); use fewer stages or a smaller tile"
    )
