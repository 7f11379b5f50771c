"""A kernel of a chain: one kernel of each link. Its rules, budget and workspace are theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernel_space.composite.budget import CompositeBudget
from kernel_space.composite.config import CompositeConfig, config_class
from kernel_space.composite.link import Link
from kernel_space.composite.traits import traits
from kernel_space.core.arch import Arch
from kernel_space.core.budget import Footprint
from kernel_space.core.kernel import Kernel, Room, Rule
from kernel_space.core.problem import Problem, ProblemClass

BETWEEN = "+"  # the names of the links' kernels in that of the chain's
SOURCE = "kernel_space.composite.host"


def composite_kernel(operator: str, links: Sequence[Link], kernels: Sequence[Kernel]) -> Kernel:
    """Of the chain ``operator``: link by link one of ``kernels``."""
    return _Chain(operator, dict(zip((link.name for link in links), links, strict=True)), kernels).kernel()


class _Chain:
    """Links and kernels by the links' names."""

    def __init__(self, operator: str, links: Mapping[str, Link], kernels: Sequence[Kernel]) -> None:
        self.operator, self.links = operator, links
        self.kernels = dict(zip(links, kernels, strict=True))
        self.name = BETWEEN.join(kernel.name for kernel in kernels)

    def kernel(self) -> Kernel:
        kernels = list(self.kernels.values())
        capacities = dict.fromkeys(resource for one in kernels for resource in one.capacities)
        return Kernel(
            name=self.name,
            operator=self.operator,
            archs=tuple(arch for arch in kernels[0].archs if all(arch in one.archs for one in kernels)),
            source=SOURCE,
            parts=tuple(kernels),
            config_class=config_class(
                self.operator, self.name, {link: one.config_class for link, one in self.kernels.items()}
            ),
            knob_rules=self._rules(),
            canonical=self._canonical,
            solve_stages=self._solve_stages,
            budget=self._budget,
            capacities=tuple(capacities),
            traffic=self._traffic if all(one.traffic for one in kernels) else None,
            room=self._room,
            machine=traits(self.links, self.kernels),
        )

    def _rules(self) -> dict[str, Rule]:
        rules: dict[str, Rule] = {}
        last = list(self.links)[-1]
        for link, kernel in self.kernels.items():
            rules |= {f"{link}_{name}": self._rule(link, rule) for name, rule in kernel.knob_rules.items()}
            if link != last:
                rules[f"{link}_workspace"] = self._rule(link, no_workspace(kernel))
        return rules

    def _rule(self, link: str, rule: Rule) -> Rule:
        def ask(config: CompositeConfig, problem: Problem) -> str | None:
            reason = rule(config.of(link), self.links[link].problem(problem))
            return f"in {link}, {reason}" if reason else None

        return ask

    def _canonical(self, config: CompositeConfig, problem: Problem) -> CompositeConfig:
        return self._each(
            config, lambda link, one: self.kernels[link].canonical(one, self.links[link].problem(problem))
        )

    def _solve_stages(
        self, config: CompositeConfig, problem_class: ProblemClass, arch: Arch
    ) -> CompositeConfig:
        return self._each(
            config,
            lambda link, one: self.kernels[link].solve_stages(
                one, self.links[link].problem_class(problem_class), arch
            ),
        )

    def _each(self, config: CompositeConfig, change: Callable[[str, Any], Any]) -> CompositeConfig:
        return config.join({link: change(link, config.of(link)) for link in self.links})

    def _budget(self, config: CompositeConfig, problem_class: ProblemClass, arch: Arch) -> CompositeBudget:
        parts = tuple(
            (link, kernel.budget(config.of(link), self.links[link].problem_class(problem_class), arch))
            for link, kernel in self.kernels.items()
        )
        return CompositeBudget(Footprint(smem=()), config, arch, parts)

    def _traffic(self, config: CompositeConfig, problem: Problem) -> float:
        return sum(
            kernel.traffic(config.of(link), self.links[link].problem(problem))
            for link, kernel in self.kernels.items()
            if kernel.traffic
        )

    def _room(self, config: CompositeConfig, problem: Problem) -> Room:
        """The last link's: the others have none, by rule."""
        link = list(self.links)[-1]
        return self.kernels[link].room(config.of(link), self.links[link].problem(problem))


def no_workspace(kernel: Kernel) -> Rule:
    """The chain has one workspace. Links that overlap in time must not share it, and its counters are at its start."""

    def rule(config: Any, problem: Any) -> str | None:
        if not (size := kernel.room(config, problem).size):
            return None
        return f"a link that others follow must take no workspace, {kernel.name} takes {size} bytes"

    return rule
