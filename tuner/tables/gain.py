"""What a row says of another problem, and what a row of its own would save: which of many problems to tune first.

A kernel is expected to be as far from the bound of memory and tensor cores as the nearest row is. One that was tuned
for other sizes takes longer, by a third of a doubling for each doubling between them: the median of 14 pairs of a row
of ``results/h200`` and its config's time at another batch size.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator
from tuner.devices.classes import DeviceClass
from tuner.tables.distance import doublings

if TYPE_CHECKING:
    from tuner.tables.dispatch import DispatchTable

SLOWER = 1 / 3  # doublings of time for each doubling of sizes between a problem and the row that serves it
MOST_DOUBLINGS = 6.0  # beyond which nothing is known to be slower still
UNTUNED = 2.0  # times the bound, where there is no row at all
# Of a kernel that waits for the one before it and moves one row: none takes less (measured, H200, 2026-11-23).
LAUNCH_US = 1.4
_HALF_OPERATIONS_S = 1e15  # where nobody says what the card has: that of a current data center card
_BYTES_S = 4e12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gain:
    """Microseconds of a call: what serves it now, and what is expected of a kernel tuned for it; modelled."""

    fallback_us: float
    estimate_us: float
    why: str

    def __str__(self) -> str:
        return (
            f"{self.fallback_us:.4g} us without a row, {self.estimate_us:.4g} us expected of one: {self.why}"
        )

    @property
    def us(self) -> float:
        return self.fallback_us - self.estimate_us


def gain_of(problem: Problem, table: DispatchTable, device_class: DeviceClass) -> Gain:
    """Nothing for a problem that has a row."""
    if own := table.own(problem):
        return Gain(fallback_us=own[0].time_us, estimate_us=own[0].time_us, why="it has a row")
    bound = bound_us(problem, device_class)
    near = table.neighbours(problem, 1)
    if not near:
        return Gain(
            fallback_us=UNTUNED * bound,
            estimate_us=bound,
            why="modelled by the bound, no row of this operator",
        )
    known = near[0].key.problem
    estimate = near[0].time_us * bound / bound_us(known, device_class)
    apart = min(doublings(problem, known), MOST_DOUBLINGS)
    return Gain(
        fallback_us=estimate * 2 ** (apart * SLOWER),
        estimate_us=estimate,
        why=f"modelled by the row of {known}",
    )


def translated_us(
    us: float, known: Problem, problem: Problem, device_class: DeviceClass, *, launches: int = 1
) -> float:
    """What a kernel takes for ``problem`` that takes ``us`` for ``known``, in ``launches`` launches; modelled.

    As many times the least time, which is the bound and what launches take. With few rows that is bytes and launches,
    not operations: 64 rows take hardly longer than 16.
    """
    spent = launches * LAUNCH_US
    return us * (bound_us(problem, device_class) + spent) / (bound_us(known, device_class) + spent)


@functools.lru_cache(maxsize=4096)
def bound_us(problem: Problem, device_class: DeviceClass) -> float:
    """No kernel is faster: every tensor moved once, or every operation done as fast as half precision is."""
    one = operator(problem.operator)
    moved = sum(one.tensor_bytes(problem).values()) / (device_class.dram_bytes_s or _BYTES_S)
    computed = one.work(problem).total / (device_class.half_flops_s or _HALF_OPERATIONS_S)
    return 1e6 * max(moved, computed)
