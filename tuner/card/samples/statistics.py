"""Intervals and tests that assume no distribution: medians by order statistics, pairs by Wilcoxon's signed ranks.

Times on a card are skewed and jump between clock states, so nothing here takes them for normal. Probabilities are
exact: counted, not approximated, with ties as they are; but for medians of samples that depend on one another.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Mapping, Sequence

from tuner.card.samples.autocorrelation import inflation, neighbour_correlation

CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interval:
    """``low`` and ``high`` hold the median with probability ``coverage``, whatever the distribution.

    ``coverage`` is at least what was asked for where that many samples can give it, else what all of them give.
    ``effective``: how many independent samples would say as much.
    """

    median: float
    low: float
    high: float
    coverage: float
    effective: float


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The median of ``samples``, in the order they were taken, and the narrowest symmetric pair of order statistics
    that holds it.

    x_(d) <= median <= x_(n+1-d) fails for independent samples with probability 2 P(Binomial(n, 1/2) < d) (David and
    Nagaraja, Order Statistics, 3rd edition, section 7.1). Below 6 samples no pair reaches 95 %: then the extremes.
    Where neighbours are correlated (``autocorrelation``), the count of samples below the median varies more, and d is
    that of a normal variable with its variance. Raises ``ValueError`` without samples.
    """
    if not samples:
        raise ValueError("an interval needs at least one sample")
    ordered, n = sorted(samples), len(samples)
    depth, outside = _median_depth(n, confidence)
    factor = inflation(n, neighbour_correlation(samples))
    if factor > 1:
        depth, outside = _correlated_depth(n, factor, depth, confidence)
    return Interval(
        median=statistics.median(ordered),
        low=ordered[depth - 1],
        high=ordered[n - depth],
        coverage=1 - 2 * outside,
        effective=n / factor,
    )


def _median_depth(n: int, confidence: float) -> tuple[int, float]:
    """The deepest order statistic that bounds the interval of independent samples, and the probability of what lies
    outside on each side."""
    depth, outside = 1, 0.5**n
    for candidate in range(2, n // 2 + 1):
        more = outside + math.comb(n, candidate - 1) * 0.5**n
        if 2 * more > 1 - confidence:
            break
        depth, outside = candidate, more
    return depth, outside


def _correlated_depth(n: int, factor: float, deepest: int, confidence: float) -> tuple[int, float]:
    """As ``_median_depth``, of samples whose count below the median has ``factor`` times the variance of n / 4."""
    normal = statistics.NormalDist((n + 1) / 2, math.sqrt(n * factor) / 2)
    depth = max(1, min(deepest, math.floor(normal.inv_cdf((1 - confidence) / 2))))
    return depth, normal.cdf(depth)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Paired:
    """Two candidates timed in the same rounds. ``ratio`` is the second's time over the first's (Hodges-Lehmann: median
    of the means of all pairs of log-ratios), ``low`` .. ``high`` its interval, ``p_value`` two-sided for a ratio of 1.
    """

    ratio: float
    low: float
    high: float
    p_value: float
    rounds: int


def compare(first: Sequence[float], second: Sequence[float], confidence: float = CONFIDENCE) -> Paired:
    """``second`` against ``first``, position by position of one round each; times above 0, all of one unit.

    Rounds count as independent: what makes times of neighbours alike meets both of a pair (``autocorrelation``).
    Interval and p-value come from the same distribution of signed ranks of log-ratios, so they agree.
    Raises ``ValueError`` for sequences of different length, empty ones, and times that are not above 0.
    """
    if len(first) != len(second) or not first:
        raise ValueError(f"a comparison needs pairs, got {len(first)} and {len(second)} times")
    if min(*first, *second) <= 0:
        raise ValueError("a comparison needs times above 0")
    logs = [math.log(b / a) for a, b in zip(first, second, strict=True)]
    walsh = sorted((logs[i] + logs[j]) / 2 for i in range(len(logs)) for j in range(i, len(logs)))
    depth = _interval_depth(len(logs), confidence)
    return Paired(
        ratio=math.exp(statistics.median(walsh)),
        low=math.exp(walsh[depth - 1]),
        high=math.exp(walsh[len(walsh) - depth]),
        p_value=signed_rank_p(logs),
        rounds=len(logs),
    )


def signed_rank_p(differences: Sequence[float]) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test that ``differences`` lie symmetrically around 0.

    Exact, given the magnitudes: every assignment of signs to their ranks is equally likely. Zeros are dropped
    (Wilcoxon's own treatment), ties share the mean of their ranks. 1.0 when nothing differs.
    """
    moved = [difference for difference in differences if difference]
    ranks = _doubled_ranks([abs(difference) for difference in moved])
    positive = sum(rank for rank, difference in zip(ranks, moved, strict=True) if difference > 0)
    counts = _sums_of_subsets(tuple(sorted(ranks)))
    least = min(positive, sum(ranks) - positive)
    return min(1.0, 2 * sum(counts[: least + 1]) / 2 ** len(ranks))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """p-values adjusted for being several (Holm 1979): each may be compared with the level of the whole family."""
    adjusted: dict[str, float] = {}
    highest = 0.0
    for index, (name, p_value) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        highest = max(highest, min(1.0, p_value * (len(p_values) - index)))
        adjusted[name] = highest
    return adjusted


def _doubled_ranks(magnitudes: Sequence[float]) -> list[int]:
    """Twice the rank of each, a whole number also where ties share the mean of their ranks."""
    ordered = sorted(magnitudes)
    first = {value: index for index, value in reversed(list(enumerate(ordered)))}
    last = {value: index for index, value in enumerate(ordered)}
    return [first[value] + last[value] + 2 for value in magnitudes]


@functools.lru_cache(maxsize=64)
def _sums_of_subsets(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Position s: how many subsets of ``ranks`` sum to s."""
    counts = [0] * (sum(ranks) + 1)
    counts[0] = 1
    reached = 0
    for rank in ranks:
        reached += rank
        for total in range(reached, rank - 1, -1):
            counts[total] += counts[total - rank]
    return tuple(counts)


def _interval_depth(n: int, confidence: float) -> int:
    """Which Walsh average, counted from either end, bounds the interval: the largest d with 2 P(W < d) no more than
    1 - confidence (Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3.3); at least 1.
    """
    counts = _sums_of_subsets(tuple(range(1, n + 1)))
    depth, outside = 0, 0
    for count in counts:
        outside += count
        if 2 * outside > (1 - confidence) * 2**n:
            break
        depth += 1
    return max(1, depth)
