"""The points of a space that an estimate finds best, before anything is compiled.

An estimate costs microseconds and a rule's verdict a millisecond, a compiler seconds. So hundreds of legal points are
estimated for the price of one trial: some from everywhere, then changes of one knob of the best of each kernel for as
long as they help. Estimates err, so what is taken is spread over tiles and clusters.
"""

from __future__ import annotations

import collections
import functools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kernel_space.composite.config import CompositeConfig
from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal, legalize
from tuner.space.changes import one_knob_changes
from tuner.space.count import Legalize
from tuner.space.space import SearchSpace

DRAWS = 500  # points from everywhere, of which a tenth or so are legal
CLIMBS, TOPS = 4, 10  # rounds of changes of one knob, and of how many points each, at most
# What a point's time counts longer for each size, and for each other knob, that it shares with one taken before.
SHARED, ALIKE = 0.03, 0.002
# What is estimated this many times as long is slower, whatever estimates err.
SLOWER = 1.1

Estimate = Callable[[KernelConfig], float | None]
_Known = dict[KernelConfig, float]


def ranked(
    space: SearchSpace,
    problem: Problem,
    arch: Arch,
    estimate: Estimate,
    *,
    limit: int,
    first: Sequence[KernelConfig] = (),
    draws: int = DRAWS,
    seed: int = 0,
    rules: Legalize = legalize,
    check_time: Callable[[], None] = lambda: None,
) -> list[KernelConfig]:
    """At most ``limit`` resolved, legal configs, that with the least estimate first; the same for the same arguments.

    ``estimate``: microseconds of a resolved config, None where nobody knows: such a kernel is not ranked, and a space
    where neither the default rule nor a start has an estimate gives nothing. ``first``: points to look at besides.
    ``check_time``: called before every look; what it raises ends the search for points.
    """
    generator = random.Random(f"{seed} {problem}")
    known: _Known = {}

    def look(configs: Iterable[KernelConfig]) -> None:
        for config in configs:
            check_time()
            legal = rules(config, problem, arch)
            if isinstance(legal, Legal) and legal.config not in known:
                us = estimate(legal.config)
                if us is not None:
                    known[legal.config] = us

    look([space.default(problem), *space.starts(problem), *first])
    if not known:
        return []
    look(space.random_config(generator) for _ in range(draws))
    _climb(space, problem, generator, known, look)
    known = _with_usual_links(space, problem, arch, known, estimate, rules)
    inside = {
        config: us for config, us in known.items() if space.spell(config, problem, arch, rules) is not None
    }
    return spread(inside, limit)


def _with_usual_links(
    space: SearchSpace, problem: Problem, arch: Arch, known: _Known, estimate: Estimate, rules: Legalize
) -> _Known:
    """Of a chain: links of which nothing is estimated as the default rule has them in a chain of the same kernels. Any
    is as good by the estimate, and one that was drawn is slow far more often.
    """
    usual: dict[str, KernelConfig] = {}
    for start in (space.default(problem), *space.starts(problem)):
        usual.setdefault(start.kernel, start)
    found: _Known = {}
    for config, us in known.items():
        start = usual.get(config.kernel, config)
        for link in start.links if isinstance(start, CompositeConfig) else ():
            knobs = {name: getattr(start, name) for name in start.knob_names() if name.startswith(f"{link}_")}
            plain = rules(config.replace(**knobs), problem, arch)
            if isinstance(plain, Legal) and estimate(plain.config) == us:
                config = plain.config
        found[config] = us
    return found


def with_fast_links(
    starts: Iterable[KernelConfig],
    space: SearchSpace,
    problem: Problem,
    arch: Arch,
    estimate: Estimate,
    *,
    others: Sequence[KernelConfig],
    rules: Legalize = legalize,
) -> Iterator[KernelConfig]:
    """``starts``, each when it is asked for; of a chain those links that a default rule gives and that are ``SLOWER``
    by their estimate as the fastest of ``others`` has them. A design of one link says nothing of the rest: beside links
    that cost more than it gains, a search would not see what it is worth.
    """
    usual = [rule.config for rule in space.defaults if isinstance(rule.config, CompositeConfig)]
    known = {(link, one.of(link)) for one in usual for link in one.links}

    def us(config: KernelConfig) -> float:
        legal = rules(config, problem, arch)
        found = estimate(legal.config) if isinstance(legal, Legal) else None
        return math.inf if found is None else found

    def faster(start: KernelConfig, link: str) -> KernelConfig:
        if not isinstance(start, CompositeConfig) or (link, start.of(link)) not in known:
            return start
        best = min(dict.fromkeys(_with_link(start, link, others)), key=us, default=start)
        return best if SLOWER * us(best) < us(start) < math.inf else start

    for start in starts:
        for link in start.links if isinstance(start, CompositeConfig) else ():
            start = faster(start, link)
        yield start


def _with_link(
    config: CompositeConfig, link: str, others: Sequence[KernelConfig]
) -> Iterator[CompositeConfig]:
    """``config`` with the link of each of ``others`` that runs the same kernel there."""
    for other in others:
        if isinstance(other, CompositeConfig) and other.links.get(link) is config.links[link]:
            own = other.of(link)
            yield config.replace(**{f"{link}_{name}": getattr(own, name) for name in own.knob_names()})


def _climb(
    space: SearchSpace,
    problem: Problem,
    generator: random.Random,
    known: _Known,
    look: Callable[[Iterable[KernelConfig]], None],
) -> None:
    """From the best points of the best tiles downhill."""
    seen: set[KernelConfig] = set()
    for _ in range(CLIMBS):
        tops = [top for top in _tops(known) if top not in seen]
        if not tops:
            return
        for top in tops:
            seen.add(top)
            look(list(one_knob_changes(space, [top], problem, generator)))


def _tops(known: _Known) -> list[KernelConfig]:
    """The best point of each of the best sizes, and of each kernel."""
    order = sorted(known, key=lambda config: (known[config], str(config)))
    sizes = {sizes_of(config): config for config in reversed(order)}
    kernels = {config.kernel: config for config in reversed(order)}
    best = sorted(sizes.values(), key=known.__getitem__)[:TOPS]
    return list(dict.fromkeys([*best, *kernels.values()]))


def spread(times: Mapping[KernelConfig, float], limit: int) -> list[KernelConfig]:
    """At most ``limit`` of them: again and again the one with the least time, where each size that it shares with one
    taken before counts ``SHARED`` more, and each other knob ``ALIKE``.
    """
    left = sorted(times, key=lambda one: (times[one], str(one)))
    shared: dict[KernelConfig, float] = collections.defaultdict(float)
    taken: list[KernelConfig] = []
    while left and len(taken) < limit:
        best = min(left, key=lambda one: times[one] * (1 + shared[one]))
        left.remove(best)
        taken.append(best)
        for one in left:
            shared[one] += SHARED * len(sizes_of(best) & sizes_of(one))
            shared[one] += ALIKE * len(others_of(best) & others_of(one))
    return taken


@functools.lru_cache(maxsize=4096)
def sizes_of(config: KernelConfig) -> frozenset[tuple[Any, ...]]:
    """What the kernel divides a problem into, such as its tile and its cluster: (kernel, knob, value)."""
    return frozenset(one for one in _knobs(config) if isinstance(one[-1], tuple))


@functools.lru_cache(maxsize=4096)
def others_of(config: KernelConfig) -> frozenset[tuple[Any, ...]]:
    """The other knobs."""
    return frozenset(one for one in _knobs(config) if not isinstance(one[-1], tuple))


def _knobs(config: KernelConfig) -> list[tuple[Any, ...]]:
    return [(config.kernel, name, getattr(config, name)) for name in config.knob_names()]
