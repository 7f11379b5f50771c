"""Intervals and paired tests against hand arithmetic, enumeration, scipy and simulation."""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics

import numpy as np
import pytest
import scipy.stats

from kernel_space.places import shipped
from tuner.card.samples.statistics import compare, holm, median_interval, signed_rank_p

# -- the median --


def mixed(n: int) -> list[float]:
    """1 .. n in turns from either half: neighbours are not alike."""
    low, high = range(1, (n + 1) // 2 + 1), range(n, (n + 1) // 2, -1)
    return [float(one) for pair in itertools.zip_longest(low, high) for one in pair if one]


def test_interval_of_six_samples_is_their_range() -> None:
    """By hand: both extremes miss the median with probability 2 / 2^6, and the next pair with 2 * 7 / 2^6."""
    found = median_interval([6.0, 1.0, 5.0, 2.0, 4.0, 3.0])
    assert (found.low, found.median, found.high) == (1.0, 3.5, 6.0)
    assert found.coverage == pytest.approx(1 - 2 / 64)


def test_interval_depths_of_the_published_table() -> None:
    """95 % depths of the sign test: n = 10 -> 2, 15 -> 4, 20 -> 6, 30 -> 10, 100 -> 40 (Conover, table A3 plus one)."""
    for n, depth in ((10, 2), (15, 4), (20, 6), (30, 10), (100, 40)):
        found = median_interval(mixed(n))
        assert (found.low, found.high) == (float(depth), float(n + 1 - depth)), n


@pytest.mark.parametrize("n", [7, 12, 25, 61])
def test_coverage_is_the_binomial_sum(n: int) -> None:
    found = median_interval(mixed(n))
    depth = int(found.low)
    assert found.coverage == pytest.approx(1 - 2 * scipy.stats.binom.cdf(depth - 1, n, 0.5))
    assert 1 - 2 * scipy.stats.binom.cdf(depth, n, 0.5) < 0.95, "the next pair would not do"


def test_few_samples_say_how_little_they_hold() -> None:
    assert median_interval([2.0, 1.0, 3.0]).coverage == pytest.approx(0.75)
    single = median_interval([5.0])
    assert (single.low, single.median, single.high, single.coverage) == (5.0, 5.0, 5.0, 0.0)
    with pytest.raises(ValueError, match="at least one"):
        median_interval([])


def test_interval_holds_the_median_of_a_skewed_distribution() -> None:
    """2000 experiments with 15 log-normal times each; the true median is 1. Exact coverage at n = 15: 96.5 %."""
    generator = random.Random(7)
    hits = 0
    for _ in range(2000):
        found = median_interval([generator.lognormvariate(0.0, 1.0) for _ in range(15)])
        hits += found.low <= 1.0 <= found.high
    assert 0.950 < hits / 2000 < 0.980


# -- samples that depend on one another --


def wandering(rho: float, n: int, experiments: int, seed: int = 1) -> np.ndarray:
    """AR(1) series of variance 1 and median 0, one per row: x_i = rho x_(i-1) + sqrt(1 - rho^2) e_i."""
    generator = np.random.default_rng(seed)
    noise = generator.standard_normal((experiments, n))
    series = noise.copy()
    for index in range(1, n):
        series[:, index] = rho * series[:, index - 1] + math.sqrt(1 - rho * rho) * noise[:, index]
    return series


@pytest.mark.parametrize("n", [41, 72])
@pytest.mark.parametrize("rho", [0.0, 0.4, 0.8])
def test_interval_holds_the_median_of_samples_that_wander(rho: float, n: int) -> None:
    """1500 experiments, so that 94 % found means 93 % at least (three standard errors are 1.8 %). With the depth of
    independent samples they find 87 to 90 % at rho = 0.4 and 57 to 63 % at 0.8."""
    found = [median_interval(series.tolist()) for series in wandering(rho, n, 1500)]
    assert sum(one.low <= 0 <= one.high for one in found) / len(found) > 0.94
    # Monotone maps leave medians where they are: the times of a card are no Gaussian process.
    skewed = [median_interval(np.exp(series).tolist()) for series in wandering(rho, n, 1500)]
    assert sum(one.low <= 1 <= one.high for one in skewed) / len(skewed) > 0.94


@pytest.mark.parametrize("n", [24, 41, 72])
def test_independent_samples_keep_the_width_that_they_had(n: int) -> None:
    """Against the pair of order statistics of the sign test, from scipy's binomial distribution."""
    depth = int(scipy.stats.binom.ppf(0.025, n, 0.5))
    assert 2 * scipy.stats.binom.cdf(depth - 1, n, 0.5) <= 0.05 < 2 * scipy.stats.binom.cdf(depth, n, 0.5)
    series = wandering(0.0, n, 1000)
    widths = [one.high - one.low for one in (median_interval(row.tolist()) for row in series)]
    ordered = np.sort(series, axis=1)
    before = (ordered[:, n - depth] - ordered[:, depth - 1]).mean()
    assert 1 <= np.mean(widths) / before < 1.12


def test_effective_samples_by_the_textbook() -> None:
    """The mean of AR(1) is worth n (1 - rho) / (1 + rho) samples; signs are less alike than values, so the median is
    worth more than that, and estimates err on the side of fewer."""
    for rho, most in ((0.0, 400.0), (0.4, 400 * 0.6 / 1.4 * 1.5), (0.8, 400 * 0.2 / 1.8 * 1.5)):
        found = [median_interval(series.tolist()).effective for series in wandering(rho, 400, 40)]
        assert 0.5 * most < statistics.median(found) <= most, (rho, statistics.median(found))
    alternating = median_interval([1.0, 2.0] * 20)
    assert alternating.effective == 40, "neighbours that differ the more tell no less"
    assert median_interval([3.0] * 30).effective == 30, (
        "a clock that ticks coarsely says nothing of dependence"
    )


def test_samples_that_drift_are_bounded_by_their_extremes() -> None:
    """A card that warms up through the whole timing: its median is not known better than its range."""
    found = median_interval([100 + 0.1 * index for index in range(24)])
    assert (found.low, found.high) == (100.0, pytest.approx(102.3)) and found.effective < 3


def test_finals_of_an_h200_state_what_they_are_worth() -> None:
    """The rounds in ``results``: at the power limit neighbours are alike, in paired ratios they are not."""
    alike, paired = [], []
    for path in sorted((shipped("results") / "h200" / "svdquant_gemm").glob("4352x*/final.json")):
        rounds = [one["us"] for one in json.loads(path.read_text())["finalists"]]
        alike.append(median_interval(rounds[0]).effective / len(rounds[0]))
        ratios = [b / a for a, b in zip(rounds[0], rounds[1], strict=True)]
        paired.append(median_interval(ratios).effective / len(ratios))
    assert len(alike) >= 6 and statistics.median(alike) < 0.6 and statistics.median(paired) > 0.8


# -- pairs --


def by_enumeration(differences: list[float]) -> float:
    """Every assignment of signs to the ranks, counted one by one."""
    moved = [value for value in differences if value]
    ranks = scipy.stats.rankdata([abs(value) for value in moved])
    total = sum(ranks)
    observed = sum(rank for rank, value in zip(ranks, moved, strict=True) if value > 0)
    least = min(observed, total - observed)
    sums = [
        sum(rank for rank, up in zip(ranks, signs, strict=True) if up)
        for signs in itertools.product((False, True), repeat=len(moved))
    ]
    return min(1.0, 2 * sum(value <= least + 1e-9 for value in sums) / len(sums))


@pytest.mark.parametrize(
    "differences",
    [
        [1.0],
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        [-1.0, 2.0, 3.0, -4.0, 5.0],
        [1.0, 1.0, -1.0, 2.0, 2.0, -3.0, 3.0],
        [0.0, 0.5, -0.5, 0.5, 0.25, 0.0, 1.0, 1.0],
        [0.3, -0.1, 0.7, 0.2, 0.9, -0.4, 0.8, 0.6, 0.5, -1.1],
    ],
)
def test_p_value_is_the_share_of_sign_patterns(differences: list[float]) -> None:
    assert signed_rank_p(differences) == pytest.approx(by_enumeration(differences))


def test_p_value_by_hand() -> None:
    """Six of six above 0: W- = 0 is one pattern of 64 on either side."""
    assert signed_rank_p([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]) == pytest.approx(2 / 64)
    assert signed_rank_p([0.0, 0.0]) == 1.0


def test_p_value_agrees_with_scipy_where_that_is_exact() -> None:
    generator = random.Random(3)
    for n in (8, 20, 40):
        differences = [generator.gauss(0.3, 1.0) for _ in range(n)]
        expected = scipy.stats.wilcoxon(differences, method="exact").pvalue
        assert signed_rank_p(differences) == pytest.approx(expected)


def test_false_alarms_are_as_rare_as_they_should_be() -> None:
    generator = random.Random(11)
    alarms = sum(signed_rank_p([generator.gauss(0.0, 1.0) for _ in range(20)]) < 0.05 for _ in range(2000))
    assert 0.035 < alarms / 2000 < 0.062


def test_ratio_of_paired_rounds_survives_a_clock_that_drifts() -> None:
    """The second is 2 % slower in each round while both speed up by a third: the medians alone would hide that."""
    generator = random.Random(5)
    drift = [1.0 + index / 60 for index in range(20)]
    first = [10.0 * factor * (1 + generator.gauss(0, 0.001)) for factor in drift]
    second = [10.2 * factor * (1 + generator.gauss(0, 0.001)) for factor in drift]
    found = compare(first, second)
    assert found.low < 1.02 < found.high and found.high - found.low < 0.002
    assert found.p_value < 1e-5 and found.rounds == 20
    back = compare(second, first)
    assert back.ratio == pytest.approx(1 / found.ratio) and back.p_value == found.p_value
    assert statistics.median(second) < max(first)


def test_interval_of_the_ratio_at_a_known_depth() -> None:
    """n = 6 at 95 %: the table gives W < 1 with 1/64 each side, so the bounds are the extreme Walsh averages."""
    logs = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32]
    found = compare([1.0] * 6, [math.exp(value) for value in logs])
    assert found.low == pytest.approx(math.exp(0.01)) and found.high == pytest.approx(math.exp(0.32))
    walsh = sorted((a + b) / 2 for i, a in enumerate(logs) for b in logs[i:])
    assert found.ratio == pytest.approx(math.exp(statistics.median(walsh)))


def test_interval_of_the_ratio_covers_it() -> None:
    """1000 experiments of 12 rounds with symmetric noise around a ratio of 1.01; exact coverage at n = 12: 95.8 %."""
    generator = random.Random(13)
    hits = 0
    for _ in range(1000):
        second = [1.01 * math.exp(generator.gauss(0.0, 0.01)) for _ in range(12)]
        found = compare([1.0] * 12, second)
        hits += found.low <= 1.01 <= found.high
    assert 0.937 < hits / 1000 < 0.977


def test_interval_and_p_value_agree() -> None:
    generator = random.Random(17)
    for _ in range(300):
        second = [math.exp(generator.gauss(0.004, 0.01)) for _ in range(15)]
        found = compare([1.0] * 15, second)
        assert (found.low <= 1.0 <= found.high) == (found.p_value > 0.05)


@pytest.mark.parametrize(
    ("first", "second"), [([], []), ([1.0], [1.0, 2.0]), ([1.0, 0.0], [1.0, 1.0]), ([1.0], [-1.0])]
)
def test_what_is_no_pair_is_refused(first: list[float], second: list[float]) -> None:
    with pytest.raises(ValueError, match="a comparison needs"):
        compare(first, second)


def test_holm_by_hand() -> None:
    """0.01 * 3, 0.02 * 2, 0.04 * 1 rises to 0.04; never below the one before."""
    assert holm({"a": 0.01, "b": 0.04, "c": 0.02}) == pytest.approx({"a": 0.03, "c": 0.04, "b": 0.04})
    assert holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}
    assert holm({}) == {}
