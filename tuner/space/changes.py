"""Points near a good one: one knob changed, or several."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TypeVar

from kernel_space.core.config import AUTO, KernelConfig
from tuner.space.space import SearchSpace

Item = TypeVar("Item")

CHANGED = (2, 3, 4)  # knobs that a larger step changes


def one_knob_changes(
    space: SearchSpace, bases: Sequence[KernelConfig], generator: random.Random
) -> Iterator[KernelConfig]:
    """Every point one choice away from a base, of the bases in turn; each base's knobs in turn, so that those with many
    choices do not come first; order and choices at random.
    """
    yield from _in_turn([_changes(space, base, generator) for base in bases])


def _changes(space: SearchSpace, base: KernelConfig, generator: random.Random) -> Iterator[KernelConfig]:
    knobs = [[(name, choice) for choice in knob.choices] for name, knob in space.knobs.items()]
    generator.shuffle(knobs)
    for choices in knobs:
        generator.shuffle(choices)
    return (changed(base, {name: choice}) for name, choice in _in_turn(knobs))


def _in_turn(lists: Iterable[Iterable[Item]]) -> Iterator[Item]:
    """The first of each, then the second of each, until all are used up."""
    for turn in zip_longest(*lists):
        yield from (item for item in turn if item is not None)


def several_knobs_changed(space: SearchSpace, base: KernelConfig, generator: random.Random) -> KernelConfig:
    """``base`` with random choices for two to four knobs."""
    names = generator.sample(list(space.knobs), generator.choice(CHANGED))
    return changed(base, {name: generator.choice(space.knobs[name].choices) for name in names})


def changed(base: KernelConfig, changes: dict[str, str]) -> KernelConfig:
    """``base`` with changed knobs. Its other stage counts are solved anew: they were found for what has changed."""
    stages = {name: AUTO for name in base.stage_names() if name not in changes}
    free = stages if not set(changes) & set(base.stage_names()) else {}
    values = {name: base.parse_knob(name, choice) for name, choice in changes.items()}
    return base.replace(**free, **values)
