"""What the project knows of each kernel: config class, rules, stage solver, budget, layouts, workspace.

A kernel is a generator for one operator on some architectures. Its folder has a module ``spec`` with its ``KERNEL``;
that is imported when the kernel is first asked for, and never imports the DSL.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from kernel_space.core.arch import Arch
from kernel_space.core.budget import Budget
from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import Problem, ProblemClass

Rule = Callable[
    [Any, Any], str | None
]  # of a config of the kernel's class and a problem; the reason when it is broken


@dataclasses.dataclass(frozen=True)
class Room:
    """Workspace of one launch, bytes. The leading ``zeroed`` must be 0 before the first launch, and every launch leaves
    them 0; the others may hold anything.
    """

    size: int = 0
    zeroed: int = 0


def no_room(config: Any, problem: Any) -> Room:
    """Of a kernel that needs no workspace."""
    return Room()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Kernel:
    """One kernel of an operator.

    ``archs``         names of the architectures that it is for
    ``source``        module with ``host_function(config, problem_class, arch)``; imports the DSL
    ``knob_rules``    rule name -> rule, in the order in which they are asked
    ``canonical``     gives knobs without effect for the problem one value
    ``solve_stages``  replaces ``auto`` by numbers
    ``budget``        of a config whose stage counts are numbers
    ``capacities``    resources of the budget (``smem``, ``tmem``) in the order in which they are checked; each is a
                      rule ``<resource>_capacity``
    ``layouts``       the object from which the kernel allocates (``allocations()``, ``footprint()``); imports the DSL,
                      needs an MLIR context
    ``room``          workspace of a resolved config for a problem
    ``traffic``       ``(config, problem)`` -> bytes that a launch brings into shared memory; None: nobody counts them
    ``rules``         module with the rules: what was derived from them is stale when it changes
    ``machine``       module with what the machine and its clock know of this kernel beside its PTX; empty: nothing
    """

    name: str
    operator: str
    archs: tuple[str, ...]
    source: str
    config_class: type[KernelConfig]
    knob_rules: Mapping[str, Rule]
    canonical: Callable[[Any, Any], Any]
    solve_stages: Callable[[Any, ProblemClass, Arch], Any]
    budget: Callable[[Any, ProblemClass, Arch], Budget]
    capacities: tuple[str, ...]
    layouts: Callable[[Any, ProblemClass], Any]
    rules: str
    traffic: Callable[[Any, Any], float] | None = None
    room: Callable[[Any, Problem], Room] = no_room
    machine: str = ""

    @property
    def full_name(self) -> str:
        """Unique among all operators: ``nvfp4_quantize/rows``."""
        return f"{self.operator}/{self.name}"

    @property
    def rule_names(self) -> tuple[str, ...]:
        """Every rule, in the order in which they are asked."""
        return (*self.knob_rules, *(f"{resource}_capacity" for resource in self.capacities))
