"""The order in which kernels of a table are tried for a problem: by estimate where there are some, else by nearness.

The one place that decides it, for a lookup and for a launch alike.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Generic, TypeVar

from kernel_space.composite.config import CompositeConfig
from kernel_space.composite.parts import parts_of
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernel_of
from kernel_space.core.traits import Effort, Rates, traits_of
from tuner.devices.classes import DeviceClass
from tuner.tables.distance import batch_names, times_larger
from tuner.tables.estimates import Estimates
from tuner.tables.gain import LAUNCH_US, bound_us, translated_us

Item = TypeVar("Item")
# (batch sizes up to this one, are decided in steps of so many): a new batch seldom has to be decided anew
STEPS = ((16, 1), (256, 8), (1024, 32), (math.inf, 64))
# So many times what its problem grows by may a kernel grow by its own formula, before its waves count as ill-fitting:
# below, formulas err as much (docs/evidence/estimates.md).
ILL_FITTING = 1.03


@dataclasses.dataclass(frozen=True, kw_only=True)
class Offer(Generic[Item]):
    """``item`` may be launched: ``config`` for the problem ``launched``, after ``adapting_us`` of making its inputs
    from those of the asked one. ``known``: the problem that it was tuned for, None if for none. ``took_us``: what it
    took there, None if nobody timed it; comparable among those of one ``origin``.
    """

    item: Item
    config: KernelConfig
    launched: Problem
    known: Problem | None
    adapting_us: float = 0.0
    took_us: float | None = None
    origin: object = None


def by_estimate(offers: Sequence[Offer[Item]], estimates: Estimates | None) -> list[Item]:
    """``offers`` come nearest first, and stay so where the nearest has no estimate, but for rows of the very layer
    (``_by_rows``) and where tiles of the nearest fit ill (``_by_waves``). Others without one come last.

    A row of the launched layer was the fastest of many at its batch. So near that batch another kernel must be
    estimated faster by more than estimates err, at a doubling from it no more.
    """
    if not offers or estimates is None:
        return [offer.item for offer in offers]
    times = [_us(offer, estimates) for offer in offers]
    if times[0] is None:
        return [offer.item for offer in _by_waves(_by_rows(offers, estimates.device), estimates.device)]
    places = sorted(range(len(offers)), key=lambda at: math.inf if (us := times[at]) is None else us)
    return [offers[at].item for at in places]


def _by_rows(offers: Sequence[Offer[Item]], rates: Rates) -> list[Offer[Item]]:
    """``offers``, nearest first, but in front of all the row of the very layer within a doubling of the batch that is
    expected to be the fastest, unless one of the same origin is nearer for another layer.

    A tile of 64 rows multiplies 65 in two: the row of 128 is further, and faster. Compared are rows of one origin, that
    of the nearest of them.
    """
    near = [(offer, us) for offer in offers if (us := _expected(offer, rates)) is not None]
    if not near or (offers[0] is not near[0][0] and offers[0].origin == near[0][0].origin):
        return list(offers)
    of_one = [(offer, us) for offer, us in near if offer.origin == near[0][0].origin]
    first = min(of_one, key=lambda pair: pair[1])[0]
    return [first, *(offer for offer in offers if offer is not first)]


def _expected(offer: Offer[Item], rates: Rates) -> float | None:
    """Microseconds of a row near by. For fewer rows than it was timed with no more than it took; for more of them as
    many times that as its kernel has more to do by its own formula, or as the batch grows.
    """
    known = offer.known
    if known is None or offer.took_us is None or not _nearness(known, offer.launched):
        return None
    batch = batch_names(known)
    grown = 1.0
    if any(getattr(known, name) < getattr(offer.launched, name) for name in batch):
        grown = float(times_larger(known, offer.launched, batch))
        if (counted := efforts(offer.config, (offer.launched, known), rates)) is not None:
            more, had = map(nominal_us, counted)
            grown = max(more / had, 1.0)
    return offer.took_us * grown + offer.adapting_us


def _by_waves(offers: Sequence[Offer[Item]], device: DeviceClass) -> list[Offer[Item]]:
    """``offers``, the best first; but where that one grows by its own formula more than its problem does, those near by
    that are expected to be faster come before it. Its tiles make waves then that the launched problem does not fill.

    Compared are rows of its origin within a doubling of the batch, of all layers. Where its tiles fit it stands: what
    formulas say of other sizes errs as much as kernels differ.
    """
    grown = _grown(offers[0], device)
    if grown is None or grown[0] <= ILL_FITTING * grown[1]:
        return list(offers)
    near = [at for at, offer in enumerate(offers) if offer.origin == offers[0].origin]
    times = {at: _carried_us(offers[at], device) for at in near}
    faster = sorted((at for at in near if times[at] < times[0]), key=times.__getitem__)
    return [offers[at] for at in (*faster, *(at for at in range(len(offers)) if at not in faster))]


def _carried_us(offer: Offer[Item], device: DeviceClass) -> float:
    """Microseconds of a row for the launched problem, infinite if nobody can tell. It shrinks no more than its problem
    does: a row was the fastest of many with the waves that it makes. Rows of the very layer go by ``_expected``.
    """
    grown = _grown(offer, device)
    if grown is None or offer.took_us is None:
        return math.inf
    own = _expected(offer, device)
    return offer.took_us * max(grown) + offer.adapting_us if own is None else own


def _grown(offer: Offer[Item], device: DeviceClass) -> tuple[float, float] | None:
    """How many times as long a timed row's kernel takes for the launched problem: by its own formula, and by the bounds
    of both problems. None without a formula, and for a batch that is a doubling away or more.
    """
    known, launched = offer.known, offer.launched
    if known is None or offer.took_us is None or times_larger(known, launched, batch_names(launched)) >= 2:
        return None
    needed = [_needed_us(offer.config, problem, device) for problem in (launched, known)]
    if needed[0] is None or needed[1] is None:
        return None
    launches = len(offer.config.links) if isinstance(offer.config, CompositeConfig) else 1
    return needed[0] / needed[1], translated_us(1.0, known, launched, device, launches=launches)


def _needed_us(config: KernelConfig, problem: Problem, device: DeviceClass) -> float | None:
    """Nominal microseconds of a launch, of a chain those of its links; None if no part of it has a formula. A link
    without one takes its bound.
    """
    try:
        parts = [part[1:] for part in parts_of(config, problem)] or [(config, problem)]
    except InputError:  # a link cannot compute its part: nor can the chain be launched
        return None
    counted = [efforts(part, [own], device) for part, own in parts]
    if not any(counted):
        return None
    return sum(
        bound_us(own, device) + LAUNCH_US if one is None else nominal_us(one[0])
        for one, (_, own) in zip(counted, parts, strict=True)
    )


def efforts(config: KernelConfig, problems: Sequence[Problem], rates: Rates) -> list[Effort] | None:
    """What a launch of ``config`` needs for each of ``problems``; None where its kernel has no formula of it."""
    effort = traits_of(kernel_of(config, problems[0])).effort
    if effort is None or rates.dram_bytes_s is None:
        return None
    return [effort(config, problem, rates) for problem in problems]


def nominal_us(effort: Effort) -> float:
    """Microseconds where every need has its nominal rate."""
    return float(effort.us(dict.fromkeys(effort.needs, 1.0), dict.fromkeys(effort.choices, 0.0)))


def _us(offer: Offer[Item], estimates: Estimates) -> float | None:
    found = estimates.of(offer.config, offer.launched)
    if found is None:
        return None
    trust = (found.error or 0.0) * _nearness(offer.known, offer.launched)
    return found.us * (1 - min(trust, 0.5)) + offer.adapting_us


def _nearness(known: Problem | None, launched: Problem) -> float:
    """1 at the known batch of the same layer, 0 a doubling from it, for another layer and where none is known."""
    if known is None:
        return 0.0
    batch = batch_names(launched)
    if any(size != getattr(known, name) for name, size in launched.sizes.items() if name not in batch):
        return 0.0
    return max(0.0, 1 - math.log2(times_larger(known, launched, batch)))


@functools.lru_cache(maxsize=4096)
def in_steps(problem: Problem) -> Problem:
    """``problem`` with its batch sizes rounded up: all batches of a step are decided alike."""
    changed = {name: _rounded(getattr(problem, name)) for name in batch_names(problem)}
    if all(getattr(problem, name) == size for name, size in changed.items()):
        return problem
    try:
        return dataclasses.replace(problem, **changed)
    except InputError:  # it would be larger than a problem may be
        return problem


def _rounded(size: int) -> int:
    step = next(step for most, step in STEPS if size <= most)
    return -(-size // step) * step
