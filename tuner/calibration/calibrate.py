"""What measured times say about the constants: which admissible sets reproduce them, and what that narrows.

Nothing is fitted: of all sets that agree with what was published (``clock_sets.admissible_pool``) those stay that
reproduce every measured time within its noise. What the machine gets wrong whatever its constants is told from times
that chose nothing: each one is predicted by the sets that the others choose.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from kernel_space.core.errors import InputError
from kernel_space.machine.clock.clock import Times

if TYPE_CHECKING:
    from tuner.simulated.constants.sets import ConstantSets

KEEP: Final = 96  # sets that predictions are made with
FEWEST: Final = 8  # an interval of fewer says nothing
NARROWED: Final = 0.75  # of the range before: less is worth a line


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One measured time. ``simulated_us``: float64 [sets of the pool]; ``noise``: share by which ``us`` may be off."""

    label: str
    us: float
    noise: float
    simulated_us: Times


@dataclasses.dataclass(frozen=True, kw_only=True)
class Narrowing:
    """Range of one constant over the pool, and over the sets that survive."""

    name: str
    before: tuple[float, float]
    after: tuple[float, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """``sets``: those that predictions are made with from now on. ``survivors`` of ``pool`` sets reproduce every row.

    ``error_before``: median error of the nominal set of the pool; ``error_after``: of the best set that the other rows
    choose, for each row; both as a share. ``covered``: share of the rows that lie between the extremes of those sets,
    before the interval is widened.
    """

    sets: ConstantSets
    pool: int
    survivors: int
    narrowed: tuple[Narrowing, ...]
    error_before: float
    error_after: float
    covered: float


def calibrate(rows: Sequence[Row], pool: ConstantSets, *, about: str = "", keep: int = KEEP) -> Calibration:
    """Choose from ``pool``. Raises ``InputError`` that names the worst row when fewer than ``FEWEST`` sets fit all."""
    errors = np.array([np.log(row.simulated_us / row.us) for row in rows])
    noise = np.array([np.log1p(row.noise) for row in rows])
    fits = np.abs(errors) <= noise[:, None]
    chosen = np.flatnonzero(fits.all(axis=0))
    if len(chosen) < FEWEST:
        raise InputError(_contradiction(rows, errors, fits, len(chosen), pool.count))
    held = [_held_out(errors, fits, number) for number in range(len(rows))]
    after = float(np.median([abs(np.expm1(error)) for error, _ in held]))
    order = chosen[np.argsort((errors[:, chosen] ** 2).sum(axis=0), kind="stable")]
    kept = order[
        np.unique(np.linspace(0, len(order) - 1, keep).astype(int))
    ]  # the best first, the rest spread
    sets = dataclasses.replace(pool.take(kept), discrepancy=after, about=about)
    return Calibration(
        sets=sets,
        pool=pool.count,
        survivors=len(chosen),
        narrowed=_narrowed(pool, chosen),
        error_before=float(np.median(np.abs(np.expm1(errors[:, 0])))),
        error_after=after,
        covered=float(np.mean([inside for _, inside in held])),
    )


def _held_out(errors: np.ndarray, fits: np.ndarray, number: int) -> tuple[float, bool]:
    """(log error of row ``number`` under the set that fits the others best, do their sets' extremes hold it?)"""
    others = np.delete(np.arange(len(errors)), number)
    chosen = np.flatnonzero(fits[others].all(axis=0))
    best = chosen[np.argmin((errors[np.ix_(others, chosen)] ** 2).sum(axis=0))]
    own = errors[number][chosen]
    return float(errors[number][best]), bool(own.min() <= 0.0 <= own.max())


def _narrowed(pool: ConstantSets, chosen: np.ndarray) -> tuple[Narrowing, ...]:
    found = []
    for name, values in pool.values.items():
        before, after = _range(values), _range(values[chosen])
        if after[1] - after[0] < NARROWED * (before[1] - before[0]):
            found.append(Narrowing(name=name, before=before, after=after))
    return tuple(sorted(found, key=lambda one: _width(one.after) / _width(one.before)))


def _range(values: Times) -> tuple[float, float]:
    """5th to 95th percentile."""
    low, high = np.percentile(values, [5, 95])
    return float(low), float(high)


def _width(bounds: tuple[float, float]) -> float:
    return bounds[1] - bounds[0]


def _contradiction(
    rows: Sequence[Row], errors: np.ndarray, fits: np.ndarray, survivors: int, pool: int
) -> str:
    """Why too few sets are left: the set that needs the least noise, and the row where it needs it."""
    over = np.abs(errors).max(axis=0)
    nearest = int(np.argmin(over))
    worst = int(np.argmax(np.abs(errors[:, nearest])))
    row, off = rows[worst], float(np.expm1(errors[worst][nearest]))
    never = [row.label for row, fit in zip(rows, fits, strict=True) if not fit.any()]
    alone = f"; no set reproduces {never[0]} even alone" if never else ""
    return (
        f"{survivors} of {pool} sets of constants reproduce all {len(rows)} measured times within their noise, and at "
        f"least {FEWEST} must; the nearest is off by {off:+.0%} at {row.label} ({row.us:.4g} us measured){alone}; look "
        f"at clocks and protocol of these times, or state more noise (--noise {abs(np.expm1(over[nearest])):.2f})"
    )
