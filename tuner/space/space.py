"""The points a search may try: those of every kernel that an operator has for an architecture, and the default rule.

A point is (kernel, its knobs). ``KERNEL`` names the kernel among parameters, beside the knobs.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Self

from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal, legalize
from tuner.space.bounded import BoundedConfig
from tuner.space.count import Count, Legalize, total
from tuner.space.files import has_space, no_space, read_default_rule, read_kernel_spaces
from tuner.space.kernel import KernelSpace, Knob

__all__ = ["KERNEL", "SearchSpace", "has_space"]

KERNEL = "kernel"


@dataclasses.dataclass(frozen=True)
class SearchSpace:
    """The union of the spaces of ``kernels`` (name -> space, in the operator's order).

    ``defaults``: the default rule, the first that holds; its last config holds for every problem.
    """

    operator: str
    kernels: Mapping[str, KernelSpace]
    defaults: tuple[BoundedConfig, ...]

    @classmethod
    def load(cls, operator_name: str, arch: Arch) -> Self:
        """The space of an operator on ``arch``. Raises ``InputError`` when there is none, and for a file that names
        what is wrong in it.
        """
        kernels = read_kernel_spaces(operator_name, arch)
        if not kernels:
            raise no_space(operator_name, arch)
        return cls(operator_name, kernels, read_default_rule(operator_name, arch, kernels))

    @property
    def knobs(self) -> dict[str, Knob]:
        """Every knob by the name that ``restrict`` takes: ``kernel.knob``, or ``knob`` where there is one kernel."""
        return {
            name if len(self.kernels) == 1 else f"{kernel}.{name}": knob
            for kernel, space in self.kernels.items()
            for name, knob in space.knobs.items()
        }

    @property
    def raw_size(self) -> int:
        """Points, legal or not."""
        return sum(space.raw_size for space in self.kernels.values())

    def of(self, config: KernelConfig) -> KernelSpace | None:
        """The space of the config's kernel; None where that is not in here."""
        return self.kernels.get(config.kernel)

    def restrict(self, choices: Mapping[str, tuple[str, ...]]) -> Self:
        """The same space with fewer choices: of ``kernel``, of a ``knob`` of all kernels that have it, or of one
        kernel's, ``kernel.knob``. The default rule stays. Raises ``InputError`` for a name that nothing has.
        """
        names = choices.get(KERNEL, tuple(self.kernels))
        known = {KERNEL} | {
            spelled
            for kernel, space in self.kernels.items()
            for name in space.knobs
            for spelled in (name, f"{kernel}.{name}")
        }
        if unknown := [*({*choices} - known), *({*names} - {*self.kernels})]:
            raise InputError(
                f"{self.operator} has no knob or kernel {min(unknown)!r}; its kernels are {', '.join(self.kernels)}"
            )
        kernels = {
            kernel: space.restrict(_own_choices(kernel, space, choices))
            for kernel, space in self.kernels.items()
            if kernel in names
        }
        return dataclasses.replace(self, kernels=kernels)

    def default(self, problem: Problem) -> KernelConfig:
        """The config of the first default rule that holds: legal for every legal problem (a test says so)."""
        return next(rule.config for rule in self.defaults if rule.holds(problem))

    def starts(self, problem: Problem) -> list[KernelConfig]:
        """What a search tries before it samples, legal or not: the designs for ``problem``, of the kernels in turn, so
        that a short search has some of each; then the default rule's configs for all problems, each of which may be
        another design.
        """
        designs = [
            [design.config for design in space.designs if design.holds(problem)]
            for space in self.kernels.values()
        ]
        turns = itertools.chain.from_iterable(itertools.zip_longest(*designs))
        return [*(config for config in turns if config is not None), *(rule.config for rule in self.defaults)]

    def config(self, params: Mapping[str, str]) -> KernelConfig:
        """``kernel`` and its knobs -> printed choice. ``kernel`` may be left out where there is one."""
        knobs = dict(params)
        name = knobs.pop(KERNEL, None) or _only(self.kernels)
        return self.kernels[name].config(knobs)

    def random_config(self, generator: random.Random) -> KernelConfig:
        """A point, legal or not: a kernel drawn evenly, then evenly from its points.

        Not in proportion to the points: how many there are says how many knobs somebody wrote down for a kernel, not
        how likely one is good, and a kernel with ten thousand would never be drawn beside one with ten million.
        """
        spaces = list(self.kernels.values())
        space = generator.choice(spaces) if len(spaces) > 1 else spaces[0]
        return space.random_config(generator)

    def spell(
        self, config: KernelConfig, problem: Problem, arch: Arch, legalize: Legalize = legalize
    ) -> dict[str, str] | None:
        """``config`` as parameters of this space, ``kernel`` first; None if it is no point of it.

        A stage count that is no choice becomes ``auto`` where that resolves to the same kernel.
        """
        space = self.of(config)
        knobs = space.spell(config, problem, arch, legalize) if space else None
        return None if knobs is None else {KERNEL: config.kernel, **knobs}

    def legal_points(self, problem: Problem, arch: Arch, legalize: Legalize = legalize) -> Iterator[Legal]:
        """Every distinct legal candidate once, kernel by kernel, in a fixed order; a few do not cost the rest."""
        return itertools.chain.from_iterable(
            space.legal_points(problem, arch, legalize) for space in self.kernels.values()
        )

    def legal_up_to(self, limit: int, problem: Problem, arch: Arch, legalize: Legalize = legalize) -> int:
        """The number of distinct legal candidates, or ``limit`` if there are at least as many."""
        return sum(1 for _ in itertools.islice(self.legal_points(problem, arch, legalize), limit))

    def counts(self, problem: Problem, arch: Arch) -> dict[str, Count]:
        """Kernel -> exact numbers of its legal and, by rule, illegal points; seconds for a large space."""
        return {name: space.count(problem, arch) for name, space in self.kernels.items()}

    def count(self, problem: Problem, arch: Arch) -> Count:
        """The sum of ``counts``: no candidate is of two kernels."""
        return total(self.counts(problem, arch).values())


def _own_choices(
    kernel: str, space: KernelSpace, choices: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Of ``choices`` those for a kernel; what names the kernel goes before what is for all."""
    own = {name: choices.get(f"{kernel}.{name}", choices.get(name)) for name in space.knobs}
    return {name: found for name, found in own.items() if found is not None}


def _only(kernels: Mapping[str, KernelSpace]) -> str:
    if len(kernels) != 1:
        raise InputError(f"a point must name its kernel, one of {', '.join(kernels)}")
    return next(iter(kernels))
