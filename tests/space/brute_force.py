"""The oracle of counts and enumerations: every point of a small space, one by one."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import NamedTuple

from kernel_space.core.arch import Arch
from kernel_space.core.problem import Problem
from kernel_space.core.rules import Rejection, legalize
from tuner.space.space import SearchSpace


class Found(NamedTuple):
    """``spelled``: legal points as written; ``resolved``: the different kernels among them; ``rejected`` by rule."""

    spelled: int
    resolved: set[str]
    rejected: Counter[str]


def every_point(part: SearchSpace, problem: Problem, arch: Arch) -> Found:
    spelled, resolved, rejected = 0, set(), Counter()
    for space in part.kernels.values():
        for texts in itertools.product(*(knob.choices for knob in space.knobs.values())):
            config = space.config_class.from_fields(dict(zip(space.knobs, texts, strict=True)))
            result = legalize(config, problem, arch)
            if isinstance(result, Rejection):
                rejected[result.rule] += 1
            else:
                spelled += 1
                resolved.add(str(result.config))
    return Found(spelled, resolved, rejected)


def small(space: SearchSpace, **choices: str) -> SearchSpace:
    """Only the choices that are named; one of every other knob. A knob's name is for all kernels that have it."""
    named = {name: tuple(text.split()) for name, text in choices.items()}
    others = {
        f"{kernel}.{name}": knob.choices[:1]
        for kernel, one in space.kernels.items()
        for name, knob in one.knobs.items()
        if name not in named
    }
    return space.restrict({**others, **named})
