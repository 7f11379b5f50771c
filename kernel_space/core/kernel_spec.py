"""What the project knows of each kernel: ``arch.kernel`` -> config class, rules, stage solver, budget, layouts.

A kernel's rules module ends with its ``SPEC``; it is imported when that kernel is first asked for, and never the DSL.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from kernel_space.core.arch import Arch
from kernel_space.core.budget import Budget
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.operators.svdquant_gemm.problem import GemmProblem, ProblemClass

Rule = Callable[
    [Any, GemmProblem], str | None
]  # of a config of the kernel's class; the reason when it is broken

_RULES = {
    "svdquant_gemm_sm100a": "kernel_space.operators.svdquant_gemm.sm100a.rules",
    "svdquant_gemm_sm90a": "kernel_space.operators.svdquant_gemm.sm90a.rules",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelSpec:
    """One kernel.

    ``knob_rules``    rule name -> rule, in the order in which they are asked
    ``canonical``     gives knobs without effect for the problem one value
    ``solve_stages``  replaces ``auto`` by numbers
    ``budget``        of a config whose stage counts are numbers
    ``capacities``    resources of the budget (``smem``, ``tmem``) in the order in which they are checked; each is a
                      rule ``<resource>_capacity``
    ``layouts``       the object from which the kernel allocates (``allocations()``, ``footprint()``); imports the DSL,
                      needs an MLIR context
    """

    config_class: type[KernelConfig]
    knob_rules: Mapping[str, Rule]
    canonical: Callable[[Any, GemmProblem], Any]
    solve_stages: Callable[[Any, ProblemClass, Arch], Any]
    budget: Callable[[Any, ProblemClass, Arch], Budget]
    capacities: tuple[str, ...]
    layouts: Callable[[Any, ProblemClass], Any]

    @property
    def rule_names(self) -> tuple[str, ...]:
        """Every rule, in the order in which they are asked."""
        return (*self.knob_rules, *(f"{resource}_capacity" for resource in self.capacities))


@functools.cache
def kernel_spec(kernel: str) -> KernelSpec:
    """The spec of ``arch.kernel``. Raises ``InputError`` for a kernel that has none."""
    if kernel not in _RULES:
        raise InputError(f"there is no kernel {kernel!r}; the kernels are {', '.join(_RULES)}")
    return importlib.import_module(_RULES[kernel]).SPEC


def rules_modules(kernel: str) -> tuple[str, ...]:
    """The modules that decide legality: what was derived from it is stale when one of them changes."""
    kernel_spec(kernel)
    return ("kernel_space.core.rules", _RULES[kernel])


def parse_config(arch: Arch, text: str) -> KernelConfig:
    """A config of the kernel of ``arch`` from its printed form. Raises ``InputError``."""
    return kernel_spec(arch.kernel).config_class.parse(text)
