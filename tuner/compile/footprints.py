"""Footprints that travel with compiled objects: sizes from which budgets are solved without the DSL.

They come from whoever compiled. Before one is used here it must be numbers, and the kernel that it is of must be able
to make a budget of it: which rings and which further sizes there are is the kernel's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kernel_space.build import footprint_store
from kernel_space.composite.link import single_problems
from kernel_space.core.arch import Arch
from kernel_space.core.errors import InputError
from kernel_space.core.kernel import Kernel
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernels_of
from tuner.files.record_checks import shown

CONFIG = "kernel="  # what a printed config begins with

Footprints = Mapping[str, Mapping[str, Any]]  # kernel -> key -> fields


def known_footprints(problem: Problem, arch: Arch) -> dict[str, dict[str, Any]]:
    """What this machine knows of the class of ``problem``; of a chain, of those of its links, too."""
    found: dict[str, dict[str, Any]] = {}
    for one in _owners(problem):
        prefix = _prefix(one, arch)
        for kernel in _with_layouts(one.operator, arch):
            own = footprint_store.entries(kernel).items()
            found.setdefault(kernel.full_name, {}).update(
                (key, fields) for key, fields in own if key.startswith(prefix)
            )
    return found


def check_footprints(footprints: Any) -> None:
    """Legality adds these numbers. Raises ``InputError``."""
    if not isinstance(footprints, dict) or not all(isinstance(own, dict) for own in footprints.values()):
        raise InputError(f"footprints must be objects by kernel, got {shown(footprints)}")
    for own in footprints.values():
        for key, fields in own.items():
            try:
                _check_fields(fields)
            except (TypeError, ValueError, KeyError, AttributeError):
                raise InputError(f"the footprint of {shown(key)} is none") from None


def adopt_footprints(footprints: Footprints, problems: Iterable[Problem], arch: Arch) -> None:
    """Take over what belongs to the classes of ``problems``, for this process. Raises ``InputError`` for a footprint
    that its kernel can make no budget of."""
    owners = (one for problem in problems for one in _owners(problem))
    classes = {(problem.operator, problem.problem_class): problem for problem in owners}
    for problem in classes.values():
        prefix = _prefix(problem, arch)
        for kernel in _with_layouts(problem.operator, arch):
            own = footprints.get(kernel.full_name, {})
            mine = {key: dict(fields) for key, fields in own.items() if key.startswith(prefix)}
            footprint_store.adopt(kernel, mine)
            for key in mine:
                _check_budget(kernel, key, CONFIG + key.removeprefix(prefix), problem, arch)


def _owners(problem: Problem) -> Iterator[Problem]:
    """Problems of operators with kernels of their own: beside what the links of a chain make of it itself, which may
    have kernels that are no chains."""
    singles = list(single_problems(problem))
    yield from singles
    if problem not in singles:
        yield problem


def _with_layouts(operator: str, arch: Arch) -> list[Kernel]:
    """Kernels whose footprints are read from layouts: those of a chain are its links'."""
    return [kernel for kernel in kernels_of(operator, arch) if kernel.layouts]


def _prefix(problem: Problem, arch: Arch) -> str:
    """How the keys of a problem's class begin (``readback.footprint_fields``). The first word of a config is part of
    it: one class may be printed as another's beginning (``... activation=gelu``)."""
    return f"{arch.name} {problem.problem_class} {CONFIG}"


def _check_budget(kernel: Kernel, key: str, config: str, problem: Problem, arch: Arch) -> None:
    try:
        budget = kernel.budget(kernel.config_class.parse(config), problem.problem_class, arch)
        _ = [budget.table(resource).total for resource in kernel.capacities]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"the footprint of {shown(key)} is none of {kernel.full_name}: {type(error).__name__}: {error}"
        ) from None


def _check_fields(fields: Mapping[str, Any]) -> None:
    sizes = [value for name, value in fields.items() if name != "smem"]
    for name, size, ring in fields["smem"]:
        sizes.append(size)
        if not isinstance(name, str) or not isinstance(ring, str):
            raise ValueError
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError
