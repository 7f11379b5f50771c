"""Launches by call: a call of a chain is several kernels, and a profile has several calls."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from kernel_space.core.errors import InputError
from tuner.card.counters.export import Profiled
from tuner.card.counters.quantities import CLOCK, DURATION, QUANTITIES


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelCounts:
    """One kernel of a call. ``values``: the median over the calls of each quantity, by its key; None: not counted."""

    kernel: str
    values: Mapping[str, float | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallCounts:
    """One call of a candidate: its kernels in order, and of how many calls the medians are."""

    calls: int
    kernels: tuple[KernelCounts, ...]

    @property
    def duration_us(self) -> float | None:
        """Of all kernels together, without the gaps between them; None when one was not timed."""
        return _sum([one.values[DURATION.key] for one in self.kernels])

    @property
    def cycles(self) -> float | None:
        """SM clocks that the kernels took, at the clock that each ran at."""
        found = [(one.values[DURATION.key], one.values[CLOCK.key]) for one in self.kernels]
        return _sum([None if us is None or ghz is None else us * ghz * 1e3 for us, ghz in found])


def by_call(launches: Sequence[Profiled], calls: int) -> CallCounts:
    """Raises ``InputError`` when the launches are not ``calls`` times the same kernels."""
    each, rest = divmod(len(launches), calls)
    names = [one.kernel for one in launches]
    if rest or not each or names != names[:each] * calls:
        raise InputError(
            f"{calls} calls must be the same kernels each, the profile has {len(launches)} launches of "
            f"{', '.join(sorted(set(names)))[:200] or 'nothing'}"
        )
    kernels = tuple(
        KernelCounts(kernel=names[place], values=_medians(launches[place::each])) for place in range(each)
    )
    return CallCounts(calls=calls, kernels=kernels)


def _medians(launches: Sequence[Profiled]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for quantity in QUANTITIES:
        values = [value for one in launches if (value := quantity.value(one.counted)) is not None]
        found[quantity.key] = statistics.median(values) if values else None
    return found


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
