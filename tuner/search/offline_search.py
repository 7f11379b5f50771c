"""Candidates chosen before anything is measured: for a machine that compiles what another one times.

No sampler can learn while it waits for another machine. So points near good ones are taken (the default, winners of
neighbouring problems, the best of earlier visits), and some from everywhere. The next visit starts from the last one's.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Sequence

from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal, legalize
from tuner.space.changes import one_knob_changes, several_knobs_changed
from tuner.space.count import Legalize
from tuner.space.space import SearchSpace
from tuner.trials.candidate import Candidate
from tuner.trials.outcome import Origin

# Of ten sampled candidates: changes of one knob of a good point, of two to four, and points from anywhere.
MIX = ("one", "many", "one", "many", "one", "many", "one", "anywhere", "one", "many")
DRAWS = 2000  # for one of them, until it is legal and new; after a whole mix without any, the space counts as used up


def choose_candidates(
    space: SearchSpace,
    problem: Problem,
    arch: Arch,
    *,
    trials: int,
    seed: int = 0,
    first: Sequence[KernelConfig] = (),
    best: Sequence[KernelConfig] = (),
    known: Collection[str] = (),
    ranked: Sequence[KernelConfig] = (),
    rules: Legalize = legalize,
) -> list[Candidate]:
    """At most ``trials`` distinct legal kernels, the same for the same arguments: the default, ``best`` (of this
    problem: its row, its trials), ``first`` (of neighbours), then what is not in ``known``: ``space.starts`` and
    sampled ones. ``ranked``: what estimates find best, tried after those starts; samples are near them too.
    """
    others = [
        start for start in space.starts(problem) if space.spell(start, problem, arch, rules) is not None
    ]
    others += ranked
    seeds = [space.default(problem), *best, *first, *others]
    origins = [Origin.DEFAULT, *[Origin.NEIGHBOUR] * len([*best, *first]), *[Origin.SAMPLED] * len(others)]
    chosen: dict[str, Candidate] = {}

    def admit(config: KernelConfig, origin: Origin) -> bool:
        legal = rules(config, problem, arch)
        if not isinstance(legal, Legal) or str(legal.config) in chosen or len(chosen) >= trials:
            return False
        if origin is Origin.SAMPLED and str(legal.config) in known:
            return False
        chosen[str(legal.config)] = Candidate(
            number=len(chosen), config=config, legal=legal, origin=origin, seed=seed
        )
        return True

    for config, origin in zip(seeds, origins, strict=True):
        admit(config, origin)
    generator = random.Random(f"{seed} {problem}")
    near = one_knob_changes(space, seeds, problem, generator)
    draw: dict[str, Callable[[], KernelConfig | None]] = {
        "one": lambda: next(near, None),
        "many": lambda: several_knobs_changed(space, generator.choice(seeds), problem, generator),
        "anywhere": lambda: space.random_config(generator),
    }
    fruitless = 0
    for kind in itertools.cycle(MIX):
        if len(chosen) >= trials or fruitless >= len(MIX):
            return list(chosen.values())
        configs = iter(draw[kind], None)  # until there are no more
        found = any(admit(config, Origin.SAMPLED) for config in itertools.islice(configs, DRAWS))
        fruitless = 0 if found else fruitless + 1
    raise AssertionError("unreachable")
