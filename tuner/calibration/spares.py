"""Spares: kernels that lost a tune and would win where nobody tuned, chosen by what estimates say of many problems.

A table's rows are the winners of a few problems. Where another problem's best kernel is none of them, the nearest row
is slower by far more than estimates err. A few more of the kernels that were timed close that gap.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy

from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernel_of
from kernel_space.core.rules import knob_rejection
from kernel_space.core.stand_in import compiled_sizes
from kernel_space.core.traits import Rates, traits_of
from tuner.calibration.fit import NEAR, Family, Names, Sample

ENOUGH = 0.005  # what is left to gain in the mean, as a share, when no more are taken
_FAR = 1e6  # microseconds of a problem for which nothing is legal yet: any kernel is better


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spares:
    """``chosen``: of each the trial that was nearest the best of its problem, the most useful first.

    ``rows_alone`` and ``with_spares``: how many times as slow as the best of all trials' kernels is the best of the
    rows, and of rows and spares; estimated, (geometric mean, largest) over ``problems``.
    """

    chosen: tuple[Sample, ...]
    problems: int
    rows_alone: tuple[float, float]
    with_spares: tuple[float, float]


def choose_spares(
    samples: Sequence[Sample],
    families: Mapping[Names, Family],
    rows: Collection[KernelConfig],
    *,
    arch: Arch,
    rates: Rates,
    most: int,
) -> Spares:
    """At most ``most`` of the kernels of ``samples``, which are of one operator and of the same compiled sizes.

    ``rows``: configs of those sizes that are launched anyway. Greedily: each is the one that shortens the estimated
    times of ``usual_problems`` the most beside those before it. Samples beyond ``fit.NEAR`` times the best of their
    problem are passed over, as estimates are not made for them. Raises ``ValueError`` without samples.
    """
    near = _nearest_to_best(one for one in samples if one.us <= NEAR * one.best_us)
    first = samples[0].problem
    known = [one for one in dict.fromkeys(rows) if math.isfinite(estimated_us(one, first, families, rates))]
    configs = [*known, *(config for config in near if config not in known)]
    problems = usual_problems(samples)
    times = numpy.array([_times(one, problems, families, arch, rates) for one in configs])
    times = times[:, numpy.isfinite(times.min(axis=0))]
    best, now = times.min(axis=0), times[: len(known)].min(axis=0, initial=_FAR)
    before, chosen = now, []
    for _ in range(most):
        gains = numpy.log(now / numpy.minimum(now, times)).mean(axis=1)
        left = float(numpy.log(now / best).mean())
        if left < math.log1p(ENOUGH):
            break
        chosen.append(int(gains.argmax()))
        now = numpy.minimum(now, times[chosen[-1]])
    return Spares(
        chosen=tuple(near[configs[at]] for at in chosen),
        problems=times.shape[1],
        rows_alone=mean_and_largest(before / best),
        with_spares=mean_and_largest(now / best),
    )


def of_one_class(samples: Iterable[Sample]) -> list[Sample]:
    """Those of the compiled sizes that most of ``samples`` have, whatever their options."""
    found: dict[tuple[Any, ...], list[Sample]] = collections.defaultdict(list)
    for one in samples:
        found[tuple(compiled_sizes(one.problem).values())].append(one)
    return max(found.values(), key=len, default=[])


def usual_problems(samples: Sequence[Sample]) -> list[Problem]:
    """Problems between the smallest and the largest of ``samples``: batch sizes from 1 in powers of two; the other
    sizes that are not compiled in are powers of two and one and a half times those, every combination."""
    first = samples[0].problem
    forms = first.forms()
    batch: list[str] = []
    layer: list[str] = []
    for name in first.size_names():
        if not forms[name].compiled:
            (batch if forms[name].batch else layer).append(name)
    largest = max((getattr(one.problem, name) for one in samples for name in batch), default=1)
    sizes = [getattr(one.problem, name) for one in samples for name in layer]
    choices = [_powers(1, largest)] * len(batch)
    choices += [_halves(min(sizes), max(sizes))] * len(layer)
    found = []
    for values in itertools.product(*choices):
        try:
            found.append(dataclasses.replace(first, **dict(zip((*batch, *layer), values, strict=True))))
        except InputError:  # not of the multiples that the operator asks for
            continue
    return found


def _powers(least: int, most: int) -> list[int]:
    return [2**power for power in range(64) if least <= 2**power <= most]


def _halves(least: int, most: int) -> list[int]:
    return sorted(
        {*_powers(least, most), *(size * 3 // 2 for size in _powers(2 * least // 3, 2 * most // 3))}
    )


def _nearest_to_best(samples: Iterable[Sample]) -> dict[KernelConfig, Sample]:
    found: dict[KernelConfig, Sample] = {}
    for one in sorted(samples, key=lambda one: (one.us / one.best_us, str(one.problem), str(one.config))):
        found.setdefault(one.config, one)
    return found


def estimated_us(
    config: KernelConfig, problem: Problem, families: Mapping[Names, Family], rates: Rates
) -> float:
    """Microseconds; infinite without an estimate. Whether the config is legal is not asked."""
    effort = traits_of(kernel_of(config, problem)).effort
    if effort is None:
        return math.inf
    needs = effort(config, problem, rates)
    family = families.get((needs.needs, tuple(needs.choices)))
    return math.inf if family is None else float(family.of((problem.operator, config.kernel)).us(needs))


def _times(
    config: KernelConfig,
    problems: Sequence[Problem],
    families: Mapping[Names, Family],
    arch: Arch,
    rates: Rates,
) -> list[float]:
    """Estimated microseconds; infinite where the config is not legal."""
    return [
        math.inf if knob_rejection(config, one, arch) else estimated_us(config, one, families, rates)
        for one in problems
    ]


def mean_and_largest(ratios: Any) -> tuple[float, float]:
    """(geometric mean, largest) of some."""
    ratios = numpy.asarray(ratios)
    return float(numpy.exp(numpy.log(ratios).mean())), float(ratios.max())
