"""Candidates chosen before anything is measured: for a machine that compiles what another one times.

No sampler can learn while it waits for another machine. So points near good ones are taken (the default, winners of
neighbouring problems, the best of earlier visits), and some from everywhere. The next visit starts from the last one's.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterable, Iterator, Sequence

from kernel_space.arch import Arch
from kernel_space.config import AUTO, KernelConfig
from kernel_space.problem import GemmProblem
from kernel_space.rules import Legal, legalize
from tuner.candidate import Candidate
from tuner.outcome import Origin
from tuner.space import SearchSpace
from tuner.space_count import Legalize

# Of ten sampled candidates: changes of one knob of a good point, of two to four, and points from anywhere.
MIX = ("one", "many", "one", "many", "one", "many", "one", "anywhere", "one", "many")
CHANGED = (2, 3, 4)
FRUITLESS_LIMIT = 20_000  # draws in a row without a new legal kernel before the space counts as used up


def choose_candidates(
    space: SearchSpace,
    problem: GemmProblem,
    arch: Arch,
    *,
    trials: int,
    seed: int = 0,
    first: Iterable[KernelConfig] = (),
    best: Sequence[KernelConfig] = (),
    known: Collection[str] = (),
    rules: Legalize = legalize,
) -> list[Candidate]:
    """At most ``trials`` distinct legal kernels, the same for the same arguments: the default, ``best`` (of this
    problem, measured), ``first`` (of neighbours), then sampled ones whose resolved config is not in ``known``.
    """
    seeds = [space.default(problem), *best, *first]
    origins = [Origin.DEFAULT, *[Origin.NEIGHBOUR] * (len(seeds) - 1)]
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
    fruitless = 0
    for config in _sampled(space, seeds, random.Random(f"{seed} {problem}")):
        fruitless = 0 if admit(config, Origin.SAMPLED) else fruitless + 1
        if len(chosen) >= trials or fruitless >= FRUITLESS_LIMIT:
            return list(chosen.values())
    return list(chosen.values())


def _sampled(
    space: SearchSpace, seeds: Sequence[KernelConfig], generator: random.Random
) -> Iterator[KernelConfig]:
    """Endless: ``MIX`` again and again."""
    near = _one_knob_changes(space, seeds, generator)
    for kind in itertools.cycle(MIX):
        config = next(near, None) if kind == "one" else None
        if config is None and kind != "anywhere":
            config = _changed(space, generator.choice(seeds), generator.choice(CHANGED), generator)
        yield config or space.random_config(generator)


def _one_knob_changes(
    space: SearchSpace, seeds: Sequence[KernelConfig], generator: random.Random
) -> Iterator[KernelConfig]:
    """Every point one choice away from a seed, of the seeds in turn; each seed's own in random order."""
    lists = []
    for base in seeds:
        changes = [(name, choice) for name, knob in space.knobs.items() for choice in knob.choices]
        generator.shuffle(changes)
        lists.append([_with(base, {name: choice}) for name, choice in changes])
    for turn in itertools.zip_longest(*lists):
        yield from (config for config in turn if config is not None)


def _changed(space: SearchSpace, base: KernelConfig, count: int, generator: random.Random) -> KernelConfig:
    names = generator.sample(list(space.knobs), count)
    return _with(base, {name: generator.choice(space.knobs[name].choices) for name in names})


def _with(base: KernelConfig, changes: dict[str, str]) -> KernelConfig:
    """``base`` with changed knobs. Its other stage counts are solved anew: they were found for what has changed."""
    stages = {name: AUTO for name in base.stage_names() if name not in changes}
    free = stages if not set(changes) & set(base.stage_names()) else {}
    values = {name: base.parse_knob(name, choice) for name, choice in changes.items()}
    return base.replace(**free, **values)
