"""The process over candidates against normal equations written out, and against functions whose answer is known."""

from __future__ import annotations

import math

import numpy
import pytest

from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tuner.search import surrogate
from tuner.search.surrogate import ERROR, NOISE, OFFSET, SLOPE, WEIGHT, Surrogate, features


def grid(*sides: int) -> list[dict[str, float]]:
    """Points of a grid whose axes are a, b, ..."""
    points = [[]]
    for side in sides:
        points = [[*point, float(at)] for point in points for at in range(side)]
    return [dict(zip("abc", point, strict=False)) for point in points]


def test_sizes_differ_by_logarithms_and_words_by_being_others() -> None:
    one = features(KernelConfigSm100a(mma_tiler_mn=(256, 64), raster_order="m", use_pdl=True, split_k=1))
    other = features(KernelConfigSm100a(mma_tiler_mn=(128, 64), raster_order="n", use_pdl=False, split_k=7))
    assert other["split_k.0"] - one["split_k.0"] == 2.0  # 1 + 7 is four times 1 + 1
    assert one["mma_tiler_mn.0"] - other["mma_tiler_mn.0"] == pytest.approx(math.log2(257 / 129))
    differ = {name for name in one.keys() | other.keys() if one.get(name, 0) != other.get(name, 0)}
    words = {"raster_order.0=m", "raster_order.0=n", "use_pdl.0=True", "use_pdl.0=False"}
    assert differ == {"split_k.0", "mma_tiler_mn.0"} | words
    assert sum(abs(one.get(name, 0) - other.get(name, 0)) for name in words) == 2.0  # one each


def test_mean_and_deviation_are_those_of_the_textbook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fitted: three points on a line, equal estimates, so all is in a 3 x 3 matrix."""
    monkeypatch.setattr(surrogate._Fit, "solve", lambda self, start: start)
    at, times = numpy.array([0.0, 1.0, 3.0]), numpy.log([10.0, 10.1, 10.0])
    points, flat = [{"a": value} for value in at], numpy.full(3, math.log(9.0))
    found = Surrogate().fit(points, flat, times)
    mean, deviation = found.predict([{"a": 2.0}], flat[:1])

    def alike(some: numpy.ndarray, others: numpy.ndarray) -> numpy.ndarray:
        return ERROR**2 * numpy.exp(-WEIGHT * abs(some[:, None] - others[None, :])) + OFFSET**2

    slow = (surrogate.SLOW * (times - times.min())) ** 2
    own = alike(at, at) + numpy.diag(NOISE**2 + slow)
    cross = alike(numpy.array([2.0]), at)
    residual, centre = times - flat, numpy.median(times - flat)
    wanted = cross @ numpy.linalg.inv(own) @ (residual - centre) + centre + flat[0]
    spread = ERROR**2 + OFFSET**2 - cross @ numpy.linalg.inv(own) @ cross.T
    assert mean == pytest.approx(wanted, abs=1e-9) and SLOPE > 0
    assert deviation == pytest.approx(numpy.sqrt(spread[0]), rel=1e-6)


def test_expected_gain_is_that_of_many_draws() -> None:
    generator = numpy.random.default_rng(0)
    points = grid(5)
    found = Surrogate().fit(points, numpy.zeros(5), numpy.array([0.3, 0.1, 0.0, 0.12, 0.25]))
    between = [{"a": 1.5}, {"a": 6.0}]
    mean, deviation = found.predict(between, numpy.zeros(2))
    draws = mean[:, None] + deviation[:, None] * generator.standard_normal((2, 400_000))
    wanted = numpy.maximum(found.best - draws, 0).mean(axis=1)
    assert found.gain(between, numpy.zeros(2)) == pytest.approx(wanted, rel=0.02)


def test_an_estimate_wrong_about_one_knob_is_corrected_where_nobody_looked() -> None:
    """The estimate says b costs nothing and c much; b costs 10 % a step and c nothing. 12 of 60 points are told."""
    points = grid(5, 4, 3)
    told = points[::5]
    truth = numpy.array([0.2 * one["a"] + 0.1 * one["b"] for one in points])
    estimate = numpy.array([0.2 * one["a"] + 0.1 * one["c"] for one in points])
    model = Surrogate()
    for _ in range(4):  # it goes on from the last constants
        found = model.fit(told, estimate[::5], truth[::5])
    mean, _ = found.predict(points, estimate)
    assert (
        numpy.abs(mean - truth).mean() < 0.25 * numpy.abs(estimate - truth - (estimate - truth).mean()).mean()
    )
    order = sorted(range(60), key=lambda at: mean[at])
    assert max(truth[at] for at in order[:3]) < 1e-9, "the three without a and b, whatever c"


def test_what_is_believed_is_not_taken_for_something_to_gain_by() -> None:
    points = grid(6)
    found = Surrogate().fit(points[:3], numpy.zeros(3), numpy.array([0.2, 0.1, 0.0]))
    before = found.gain(points[3:], numpy.zeros(3))
    mean, _ = found.predict(points[3:4], numpy.zeros(1))
    found.believed(points[3:4], numpy.zeros(1))
    after = found.gain(points[3:], numpy.zeros(3))
    assert found.predict(points[3:4], numpy.zeros(1))[0] == pytest.approx(mean, abs=1e-4)
    assert after[0] < 0.2 * before[0] and after[1] < before[1]


def test_of_very_many_points_the_fastest_and_the_latest_are_learnt_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(surrogate, "MOST", 8)
    times = numpy.array([0.0, 0.01, 0.02, 0.03, *[0.5] * 20, 0.4, 0.3, 0.2, 0.1])
    found = Surrogate().fit(grid(28), numpy.zeros(28), times)
    assert sorted(found._estimates.shape + found._table.shape)[-1] == 8 and found.best == 0.0
