"""Compile what a search will surely try first, before it can begin: a card's worker takes seconds to start."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from kernel_space.arch import Arch
from kernel_space.config import KernelConfig
from kernel_space.errors import InputError
from kernel_space.kernel_spec import parse_config
from kernel_space.problem import GemmProblem, ProblemClass
from kernel_space.rules import Legal, legalize
from tuner.space import SearchSpace

if TYPE_CHECKING:
    from tuner.compile_pool import CompileResult


class Pool(Protocol):
    """What is needed of ``CompilePool``."""

    def submit(
        self, config: KernelConfig, problem_class: ProblemClass, arch: Arch
    ) -> concurrent.futures.Future[CompileResult]: ...


def first_configs(
    space: SearchSpace,
    problem: GemmProblem,
    neighbours: Iterable[str],
    published: KernelConfig | None,
    arch: Arch,
) -> Iterator[KernelConfig]:
    """What ``search.Search`` begins with, whatever is measured: the default, winners of neighbouring problems (in their
    printed form), the published configuration, the default rule's other designs. Some may not be legal."""
    yield space.default(problem)
    yield from parsed(neighbours, arch)
    others = [published] if published else []
    for config in (*others, *(rule.config for rule in space.defaults)):
        if space.spell(config, problem, arch, legalize) is not None:
            yield config


def compile_ahead(
    pool: Pool, configs: Iterable[KernelConfig], problem: GemmProblem, arch: Arch, most: int
) -> dict[str, concurrent.futures.Future[CompileResult]]:
    """Begin with the first ``most`` legal ones; what comes of each by resolved config."""
    begun: dict[str, concurrent.futures.Future[CompileResult]] = {}
    for config in configs:
        legal = legalize(config, problem, arch)
        if len(begun) < most and isinstance(legal, Legal) and str(legal.config) not in begun:
            begun[str(legal.config)] = pool.submit(legal.config, problem.problem_class, arch)
    return begun


def parsed(printed: Iterable[str], arch: Arch) -> Iterator[KernelConfig]:
    """Those that this version can read: an old row may name a knob that is gone."""
    for text in printed:
        with contextlib.suppress(InputError):
            yield parse_config(arch, text)
