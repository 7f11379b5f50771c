"""Three ways to look for a problem's best config, from nothing: the project's search, random points, TPE alone.

A way asks for times through ``Ask``, and may ask ahead of what it was told as far as its sequence allows: up to as many
as a search may lag behind. So whoever answers can work on several at once, and the sequence is that of one at a time.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal, legalize
from tuner.devices.classes import DeviceClass
from tuner.search.prefilter import Prefilter
from tuner.search.ranked import ranked
from tuner.search.sampler import Sampler
from tuner.search.search import Search
from tuner.search.window import WINDOW
from tuner.space.published import published_config
from tuner.space.space import SearchSpace
from tuner.tune.promising import MOST, estimate_for

Found = list[float | None]  # microseconds of each trial, None for one that has no time


class NotKnown(Exception):
    """A time that no file holds was asked for, and nothing may be compiled, or the clock has changed since."""


class Ask(Protocol):
    """Who knows times of one problem."""

    def begin(self, legal: Legal) -> Callable[[], float | None]:
        """What waits for the time: microseconds, None for a config without one. It raises ``NotKnown``."""


def search_from_nothing(
    problem: Problem, device: DeviceClass, times: Ask, found: Found, *, seed: int, trials: int
) -> None:
    """What a tune tries whose folder of results is empty."""
    nowhere = Path("/nonexistent")
    space, estimate = SearchSpace.load(problem.operator, device.arch), estimate_for(problem, device, nowhere)
    published = published_config(problem, device.arch)
    search = Search(
        space, problem, device.arch, seed=seed, trials=trials, estimate=estimate,
        first=ranked(space, problem, device.arch, estimate, limit=MOST, seed=seed),
        published=published.config if published else None, prefilter=Prefilter(problem, device),
    )  # fmt: skip
    waiting = collections.deque[tuple[int, Callable[[], float | None]]]()
    while True:
        if candidate := search.ask():
            waiting.append((candidate.number, times.begin(candidate.legal)))
        elif waiting:
            number, us = waiting.popleft()
            found.append(us())
            search.tell(number, found[-1])
        else:
            return


def at_random(
    problem: Problem, device: DeviceClass, times: Ask, found: Found, *, seed: int, trials: int
) -> None:
    """Legal points as they are drawn, each once; the draws are the same for every problem, legality is not."""
    waiting = collections.deque[Callable[[], float | None]]()
    for number, legal in enumerate(_draws(problem, device, random.Random(seed))):
        if number == trials:
            break
        if len(waiting) == WINDOW:
            found.append(waiting.popleft()())
        waiting.append(times.begin(legal))
    found.extend(us() for us in waiting)


def _draws(problem: Problem, device: DeviceClass, generator: random.Random) -> Iterator[Legal]:
    space, seen = SearchSpace.load(problem.operator, device.arch), set[KernelConfig]()
    while True:
        legal = legalize(space.random_config(generator), problem, device.arch)
        if isinstance(legal, Legal) and legal.config not in seen:
            seen.add(legal.config)
            yield legal


def tpe_alone(
    problem: Problem, device: DeviceClass, times: Ask, found: Found, *, seed: int, trials: int
) -> None:
    """Optuna's sampler from its first random points on; it hears at once of what is illegal."""
    space = SearchSpace.load(problem.operator, device.arch)
    sampler, known = Sampler(space, seed), dict[KernelConfig, float | None]()
    while len(found) < trials:
        proposal = sampler.propose()
        legal = legalize(space.config(proposal.params), problem, device.arch)
        if not isinstance(legal, Legal):
            sampler.refuse(proposal, "legal")
            continue
        if legal.config not in known:
            known[legal.config] = times.begin(legal)()
            found.append(known[legal.config])
        us = known[legal.config]
        sampler.refuse(proposal, "evaluated") if us is None else sampler.tell(proposal, us)


# Each appends to ``found`` what it was told, in the order in which it asked, and raises ``NotKnown``.
WAYS: dict[str, Callable[..., None]] = {
    "search": search_from_nothing, "random": at_random, "tpe": tpe_alone,
}  # fmt: skip
