"""How many independent samples a series of times is worth: a clock or a temperature that wanders makes neighbours
alike.

Of 19 finals on an H200 (2026-11-22) 14 have a correlation between neighbours (lag 1) above 0.4, at the power limit up
to 0.94, while their paired ratios have none: what wanders meets all finalists of a round alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

HIGHEST = 0.99  # a correlation beyond which no number of samples here says more than a single one


def neighbour_correlation(samples: Sequence[float]) -> float:
    """Lag-1 correlation of ``samples`` in the order they were taken, 0 .. ``HIGHEST``: 0 where they may be independent.

    By ranks, so that an outlier is one sample and no more, put back to the scale of a Gaussian process. The estimate of
    a short series is too low by (1 + 3 rho) / n (Kendall 1954, Marriott and Pope 1954) and uncertain by a standard
    error of sqrt((1 - rho^2) / n): both are added, as an interval must not be too narrow in half of all cases. Below
    one standard error of independent samples it is taken for 0.
    """
    n = len(samples)
    ranks = _centred_ranks(samples)
    spread = sum(rank * rank for rank in ranks)
    if not spread:
        return 0.0
    found = sum(one * other for one, other in itertools.pairwise(ranks)) / spread
    if found * math.sqrt(n) <= 1:
        return 0.0
    found += (1 + 3 * found) / n + math.sqrt((1 - found * found) / n)
    return min(HIGHEST, 2 * math.sin(math.pi * min(found, 1.0) / 6))


def inflation(n: int, correlation: float) -> float:
    """By what factor the count of samples below the median varies more than that of ``n`` independent ones does.

    For a Gaussian process whose correlation falls by the factor ``correlation`` per sample, AR(1): which side of the
    median two samples k apart lie on has the correlation 2 / pi asin(rho^k).
    """
    return 1 + 2 * sum((1 - k / n) * 2 / math.pi * math.asin(correlation**k) for k in range(1, n))


def _centred_ranks(samples: Sequence[float]) -> list[float]:
    """Ranks around 0, ties share the mean of theirs."""
    ordered = sorted(samples)
    first = {value: index for index, value in reversed(list(enumerate(ordered)))}
    last = {value: index for index, value in enumerate(ordered)}
    return [(first[value] + last[value] + 1 - len(ordered)) / 2 for value in samples]
