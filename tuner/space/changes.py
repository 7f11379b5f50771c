"""Points near a good one: one knob changed, or several, or the kernel."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TypeVar

from kernel_space.core.config import AUTO, KernelConfig
from kernel_space.core.problem import Problem
from tuner.space.kernel import KernelSpace
from tuner.space.space import KERNEL, SearchSpace

Item = TypeVar("Item")

CHANGED = (2, 3, 4)  # knobs that a larger step changes


def one_knob_changes(
    space: SearchSpace, bases: Sequence[KernelConfig], problem: Problem, generator: random.Random
) -> Iterator[KernelConfig]:
    """Every point one choice away from a base, of the bases in turn; each base's knobs in turn, so that those with many
    choices do not come first; order and choices at random. The kernel counts as a knob: its choices are ``crossings``.
    """
    yield from _in_turn([_changes(space, base, problem, generator) for base in bases])


def several_knobs_changed(
    space: SearchSpace, base: KernelConfig, problem: Problem, generator: random.Random
) -> KernelConfig:
    """``base`` with random choices for two to four knobs, or for those that there are; the kernel counts as one."""
    own = space.of(base)
    names = [*(own.knobs if own else ()), *((KERNEL,) if _others(space, base) else ())]
    drawn = generator.sample(names, min(generator.choice(CHANGED), len(names)))
    if KERNEL in drawn:
        base = generator.choice(crossings(space, base, problem))
        own = space.kernels[base.kernel]
        drawn = generator.sample(list(own.knobs), min(len(drawn) - 1, len(own.knobs)))
    if own is None:
        return base
    return changed(own, base, {name: generator.choice(own.knobs[name].choices) for name in drawn})


def crossings(space: SearchSpace, base: KernelConfig, problem: Problem) -> list[KernelConfig]:
    """Points of the other kernels, legal or not, each once: where a search of each begins, with what ``base`` says of
    the knobs that both have, and as it is.
    """
    found: dict[KernelConfig, None] = {}
    for other in _others(space, base):
        begins = [start for start in space.starts(problem) if start.kernel == other.kernel]
        for begin in begins or [other.plainest]:
            found |= dict.fromkeys((changed(other, begin, _common(other, base)), begin))
    return list(found)


def changed(space: KernelSpace, base: KernelConfig, changes: dict[str, str]) -> KernelConfig:
    """``base``, of the kernel of ``space``, with changed knobs. Its other stage counts are solved anew, where the space
    lets them: they were found for what has changed.
    """
    values = {name: base.parse_knob(name, choice) for name, choice in changes.items()}
    free = space.solved if space.stages.isdisjoint(changes) else ()
    return base.replace(**{**dict.fromkeys(free, AUTO), **values})


def _others(space: SearchSpace, base: KernelConfig) -> list[KernelSpace]:
    return [one for name, one in space.kernels.items() if name != base.kernel]


def _common(other: KernelSpace, base: KernelConfig) -> dict[str, str]:
    """What ``base`` says of knobs that ``other`` has by the same name, where it is a choice; no stage counts."""
    left = other.stages | set(base.stage_names())
    return {
        name: text
        for name, text in base.fields().items()
        if name not in left and name in other.knobs and text in other.knobs[name].choices
    }


def _changes(
    space: SearchSpace, base: KernelConfig, problem: Problem, generator: random.Random
) -> Iterator[KernelConfig]:
    knobs = []
    if own := space.of(base):
        knobs = [
            [changed(own, base, {name: choice}) for choice in knob.choices]
            for name, knob in own.knobs.items()
        ]
    if others := crossings(space, base, problem):
        knobs.append(others)
    generator.shuffle(knobs)
    for points in knobs:
        generator.shuffle(points)
    return _in_turn(knobs)


def _in_turn(lists: Iterable[Iterable[Item]]) -> Iterator[Item]:
    """The first of each, then the second of each, until all are used up."""
    for turn in zip_longest(*lists):
        yield from (item for item in turn if item is not None)
