"""The oracle of counts and enumerations: every point of a small space, one by one."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import NamedTuple

from kernel_space.core.arch import Arch
from kernel_space.core.rules import Rejection, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.space.space import SearchSpace


class Found(NamedTuple):
    """``spelled``: legal points as written; ``resolved``: the different kernels among them; ``rejected`` by rule."""

    spelled: int
    resolved: set[str]
    rejected: Counter[str]


def every_point(part: SearchSpace, problem: GemmProblem, arch: Arch) -> Found:
    spelled, resolved, rejected = 0, set(), Counter()
    for texts in itertools.product(*(knob.choices for knob in part.knobs.values())):
        result = legalize(part.config(dict(zip(part.knobs, texts, strict=True))), problem, arch)
        if isinstance(result, Rejection):
            rejected[result.rule] += 1
        else:
            spelled += 1
            resolved.add(str(result.config))
    return Found(spelled, resolved, rejected)


def small(space: SearchSpace, **choices: str) -> SearchSpace:
    """Only the choices that are named; one of every other knob."""
    named = {name: tuple(text.split()) for name, text in choices.items()}
    others = {name: knob.choices[:1] for name, knob in space.knobs.items() if name not in named}
    return space.restrict({**others, **named})
