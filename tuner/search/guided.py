"""Candidates that are expected to gain most, by an estimate corrected by the times told so far (``surrogate``).

Estimates cost microseconds and a rule's verdict half a millisecond, so hundreds of legal points are looked at for one
that is compiled: some from everywhere, those around the best that were timed, and, round by round, those around what
is expected to gain most. Several are taken at once, each as if the ones before it had been timed as expected: a tile
that is tried once is not tried again in other words before its time is known.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Iterable, Sequence

import numpy

from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal
from tuner.search.ranked import Estimate, sizes_of
from tuner.search.surrogate import Posterior, Surrogate, features
from tuner.space.changes import one_knob_changes, several_knobs_changed
from tuner.space.count import Legalize
from tuner.space.space import SearchSpace

DRAWS = 400  # points from everywhere
AROUND = 60  # points several knobs away from each of the best
GOOD = 3
BATCH = 4  # candidates of one look
ROUNDS, TOPS = 3, 4  # of looking around, and around how many points in each
MOST = 1200  # points that are remembered
FAMILY_WITHIN = (
    0.15  # how much slower than the best, by what is expected, another tile, cluster or split may be
)
LOOKED_AT = 300  # of them when some are taken
SPLIT = "split_k"

_Point = tuple[dict[str, float], float]  # features, log estimate


class Guide:
    """Of one search. ``estimate``: microseconds of a resolved config, None where nobody knows."""

    def __init__(
        self,
        space: SearchSpace,
        problem: Problem,
        arch: Arch,
        *,
        estimate: Estimate,
        rules: Legalize,
        generator: random.Random,
    ) -> None:
        self._space, self._problem, self._arch = space, problem, arch
        self._estimate, self._rules, self._random = estimate, rules, generator
        self._surrogate = Surrogate()
        self._told: dict[KernelConfig, float | None] = {}
        self._points: dict[KernelConfig, _Point] = {}
        self._pool: dict[KernelConfig, None] = {}  # legal and not gone
        self._gone: set[KernelConfig] = set()
        self._seen: set[KernelConfig] = set()  # around which was looked
        self._queue: deque[KernelConfig] = deque()

    def tell(self, config: KernelConfig, us: float | None) -> None:
        """Of a resolved config; None for one that failed."""
        self._told[config] = us

    def leave_out(self, config: KernelConfig) -> None:
        """A resolved config that was asked for, or never will be."""
        self._gone.add(config)
        self._pool.pop(config, None)

    def propose(self, waiting: Sequence[KernelConfig]) -> KernelConfig | None:
        """A legal, resolved config that is not left out; None when there is nothing new or nothing is known.

        ``waiting``: resolved configs that were asked for and whose times are not told.
        """
        while self._queue:
            config = self._queue.popleft()
            if config not in self._gone:
                return config
        if not any(us is not None for us in self._told.values()):
            return None
        self._queue.extend(self._look(waiting))
        return self._queue.popleft() if self._queue else None

    def _look(self, waiting: Sequence[KernelConfig]) -> list[KernelConfig]:
        posterior = self._posterior(waiting)
        if not self._seen:
            self._add(self._space.starts(self._problem))
            self._add(self._space.random_config(self._random) for _ in range(DRAWS))
        good = sorted((us, str(config), config) for config, us in self._told.items() if us is not None)
        self._expand([config for _, _, config in good[:GOOD]], AROUND)
        for _ in range(ROUNDS):
            left = self._ranked(posterior)
            self._pool = dict.fromkeys([*left[:MOST]])
            self._expand(left[:TOPS], 0)
        return self._take(posterior, self._ranked(posterior))

    def _posterior(self, waiting: Sequence[KernelConfig]) -> Posterior:
        worst = max(us for us in self._told.values() if us is not None)
        points = [self._point(config) for config in self._told]
        times = numpy.log([worst if us is None else us for us in self._told.values()])
        middle = float(numpy.median(times))
        posterior = self._surrogate.fit([one for one, _ in points], _filled(points, middle), times)
        self._middle = middle
        if waiting:
            posterior.believed(*self._of(waiting))
        return posterior

    def _ranked(self, posterior: Posterior) -> list[KernelConfig]:
        """The pool, what gains most first."""
        left = list(self._pool)
        if not left:
            return []
        gains = posterior.gain(*self._of(left))
        return [left[at] for at in numpy.argsort(-gains, kind="stable")]

    def _take(self, posterior: Posterior, order: list[KernelConfig]) -> list[KernelConfig]:
        """One after another, each as if those before it had taken what is expected of them."""
        left, taken = order[:LOOKED_AT], list[KernelConfig]()
        if (other := self._of_another_family(posterior, order)) is not None:
            taken.append(other)
            posterior.believed(*self._of([other]))
            left = [one for one in left if one != other]
        while left and len(taken) < BATCH:
            best = left.pop(int(numpy.argmax(posterior.gain(*self._of(left)))))
            if self._space.spell(best, self._problem, self._arch, self._rules) is None:
                self.leave_out(best)  # beside a default that a restricted space does not hold
                continue
            taken.append(best)
            posterior.believed(*self._of([best]))
        return taken

    def _of_another_family(self, posterior: Posterior, order: list[KernelConfig]) -> KernelConfig | None:
        """The one that should be fastest of those divided as none was that was asked for: an estimate's error there is
        not known, and where many alike were told the process takes it for small.
        """
        tried = set(map(_family, self._gone))
        new = [one for one in order if _family(one) not in tried]
        if not new:
            return None
        mean, _ = posterior.predict(*self._of(new))
        best = int(numpy.argmin(mean))
        inside = self._space.spell(new[best], self._problem, self._arch, self._rules) is not None
        return new[best] if inside and mean[best] < posterior.best + FAMILY_WITHIN else None

    def _expand(self, bases: Iterable[KernelConfig], several: int) -> None:
        for base in bases:
            if base in self._seen or self._space.of(base) is None:
                continue
            self._seen.add(base)
            near = one_knob_changes(self._space, [base], self._problem, self._random)
            far = (
                several_knobs_changed(self._space, base, self._problem, self._random) for _ in range(several)
            )
            self._add(list(itertools.chain(near, far)))

    def _add(self, configs: Iterable[KernelConfig]) -> None:
        for config in configs:
            legal = self._rules(config, self._problem, self._arch)
            if isinstance(legal, Legal) and legal.config not in self._gone:
                self._pool.setdefault(legal.config)

    def _of(self, configs: Sequence[KernelConfig]) -> tuple[list[dict[str, float]], numpy.ndarray]:
        points = [self._point(config) for config in configs]
        return [one for one, _ in points], _filled(points, self._middle)

    def _point(self, config: KernelConfig) -> _Point:
        if config not in self._points:
            us = self._estimate(config)
            self._points[config] = features(config), math.nan if us is None else math.log(us)
        return self._points[config]


def _family(config: KernelConfig) -> tuple[object, ...]:
    """How it divides a problem: its sizes, and its splits of K where it has any, or its links have."""
    names = (name for name in config.knob_names() if name == SPLIT or name.endswith(f"_{SPLIT}"))
    return sizes_of(config), *(getattr(config, name) for name in names)


def _filled(points: Sequence[_Point], middle: float) -> numpy.ndarray:
    """Log estimates; without one, a time as usual as any."""
    found = numpy.array([estimate for _, estimate in points])
    return numpy.where(numpy.isnan(found), middle, found)
