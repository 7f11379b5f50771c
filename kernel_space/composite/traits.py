"""What the machine and the clock know of a chain, from what they know of its links."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernel_space.composite.config import CompositeConfig
from kernel_space.composite.link import Link
from kernel_space.core.kernel import Kernel
from kernel_space.core.problem import Problem
from kernel_space.core.traits import Chip, MachineTraits, traits_of


def traits(links: Mapping[str, Link], kernels: Mapping[str, Kernel]) -> MachineTraits:
    """Sizes at which a check runs are chosen by the last link that chooses any: in a chain that is the one with the
    longer main loop. Only the last link has a workspace, so its atomics are all.
    """
    own = {link: traits_of(kernel) for link, kernel in kernels.items()}
    last = list(links)[-1]
    choosing = [link for link, one in own.items() if one.exercise]
    atomics = own[last].atomic_results

    def exercise(config: CompositeConfig, problem: Problem) -> tuple[Problem, int]:
        link = choosing[-1]
        choose = own[link].exercise
        assert choose is not None  # by the choice of links
        part, sms = choose(config.of(link), links[link].problem(problem))
        return links[link].widen(part, problem), max(sms, config.cluster_size)

    def results(config: CompositeConfig, problem: Problem, sm_count: int) -> tuple[int, ...]:
        assert atomics is not None  # else nobody asks
        return atomics(config.of(last), links[last].problem(problem), sm_count)

    def model_us(config: CompositeConfig, problem: Problem, chip: Chip) -> float:
        return sum(
            one.model_us(config.of(link), links[link].problem(problem), chip)
            for link, one in own.items()
            if one.model_us
        )

    modelled = [set(one.modelled) for one in own.values()]
    quick = all(one.model_us for one in own.values())
    return MachineTraits(
        exercise=exercise if choosing else None,
        operands=_joined(own, links, "operands"),
        causes={cause: name for one in own.values() for cause, name in one.causes.items()},
        atomic_results=results if atomics else None,
        model_us=model_us if quick else None,
        modelled=tuple(sorted(set.intersection(*modelled))) if quick else (),
    )


def _joined(own: Mapping[str, MachineTraits], links: Mapping[str, Link], field: str) -> dict[str, Any]:
    """Arguments by the chain's names."""
    return {
        links[link].called(name): value
        for link, one in own.items()
        for name, value in getattr(one, field).items()
    }
