"""What the project knows of each kernel: config class, rules, stage solver, budget, layouts, workspace.

A kernel is a generator for one operator on some architectures. Its folder has a module ``spec`` with its ``KERNEL``;
that is imported when the kernel is first asked for, and never imports the DSL.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kernel_space.core.arch import Arch
from kernel_space.core.budget import Budget, Footprint
from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import ProblemClass

if TYPE_CHECKING:
    from kernel_space.core.traits import MachineTraits

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


def as_it_is(config: Any, *_: Any) -> Any:
    """Of a kernel whose configs are canonical and have no stages to solve."""
    return config


class NoSharedMemory(Budget):
    """Of a kernel that allocates nothing."""

    @property
    def slots(self) -> dict[str, int]:
        return {}


def no_shared_memory(config: Any, problem_class: ProblemClass, arch: Arch) -> Budget:
    return NoSharedMemory(Footprint(smem=()), config, arch)


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
                      needs an MLIR context; None for a kernel without shared memory
    ``room``          workspace of a resolved config for a problem
    ``traffic``       ``(config, problem)`` -> bytes that a launch brings into shared memory; None: nobody counts them
    ``rules``         module with the rules, by default that of the config class: what was derived from them is stale
                      when it changes
    ``machine``       module with what the machine and its clock know of this kernel beside its PTX, or the traits
                      themselves; empty: nothing
    ``parts``         kernels of other operators that this one launches one after the other (``kernel_space.composite``)
    """

    name: str
    operator: str
    archs: tuple[str, ...]
    source: str
    config_class: type[KernelConfig]
    knob_rules: Mapping[str, Rule]
    canonical: Callable[[Any, Any], Any] = as_it_is
    solve_stages: Callable[[Any, ProblemClass, Arch], Any] = as_it_is
    budget: Callable[[Any, ProblemClass, Arch], Budget] = no_shared_memory
    capacities: tuple[str, ...] = ()
    layouts: Callable[[Any, ProblemClass], Any] | None = None
    rules: str = ""
    traffic: Callable[[Any, Any], float] | None = None
    room: Callable[[Any, Any], Room] = no_room
    machine: str | MachineTraits = ""
    parts: tuple[Kernel, ...] = ()

    def __post_init__(self) -> None:
        if not self.rules:
            object.__setattr__(self, "rules", self.config_class.__module__)

    @property
    def full_name(self) -> str:
        """Unique among all operators: ``nvfp4_quantize/rows``."""
        return f"{self.operator}/{self.name}"

    @property
    def rule_names(self) -> tuple[str, ...]:
        """Every rule, in the order in which they are asked."""
        return (*self.knob_rules, *(f"{resource}_capacity" for resource in self.capacities))
