"""What a search expects of candidates that nobody timed: an estimate, corrected by what was measured of others.

A Gaussian process on the logarithm of time over estimate. Two candidates are the more alike, the less their knobs
differ: ``exp(-sum of weight x difference)``, where sizes differ by their binary logarithms and words by being others.
The weights are fitted to what is known (maximum a posteriori), so a knob without effect soon counts for nothing, and
an estimate that is wrong about a cluster or a split is corrected wherever that occurs. What is slow counts less: it
is the fast ones that must be told apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.special import ndtr

from kernel_space.core.config import KernelConfig

MOST = 320  # points that are learnt from: the fastest of them and the latest
# Before anything is known: what a knob's weight is, an estimate's error and a time's noise, as shares; and how far off
# each of the three may be, as a factor.
WEIGHT, ERROR, NOISE = 0.12, 0.12, 0.003
WEIGHT_SPREAD, ERROR_SPREAD, NOISE_SPREAD = 3.3, 2.0, 2.0
OFFSET, SLOPE = 0.5, 0.2  # of all estimates together: a common factor, and one that grows with them
SLOW = 0.15  # share of (log of time over the best) by which a slow point's time counts as uncertain
STEPS = 15  # of the fit, from the constants of the last one

Array = Any  # numpy.ndarray: numpy's own types say no more


def features(config: KernelConfig) -> dict[str, float]:
    """Numbers that are the nearer, the more alike two configs are."""
    found = {f"kernel={config.kernel}": 0.5}
    for name in config.knob_names():
        value = getattr(config, name)
        parts = value if isinstance(value, tuple) else (value,)
        for place, part in enumerate(parts):
            if isinstance(part, int) and not isinstance(part, bool) and part >= 0:
                found[f"{name}.{place}"] = math.log2(1 + part)
            else:
                found[f"{name}.{place}={part}"] = 0.5
    return found


class Surrogate:
    """Learns from (features, log estimate, log time) and answers mean and standard deviation of the log time."""

    def __init__(self) -> None:
        self._constants: dict[str, float] = {}  # the logarithms of those that were fitted last, by feature

    def fit(self, points: Sequence[Mapping[str, float]], estimates: Array, times: Array) -> Posterior:
        """``estimates`` and ``times``: natural logarithms of microseconds, of at least one point."""
        if len(points) > MOST:
            kept = sorted({*numpy.argsort(times, kind="stable")[: MOST // 2].tolist(),
                           *range(len(points) - MOST // 2, len(points))})  # fmt: skip
            points, estimates, times = [points[at] for at in kept], estimates[kept], times[kept]
        names = sorted({name for point in points for name in point})
        table = _table(points, names)
        moving = [at for at in range(len(names)) if numpy.ptp(table[:, at]) > 0]
        residuals = times - estimates
        centre, middle = float(numpy.median(residuals)), float(numpy.mean(estimates))
        problem = _Fit(
            gaps=numpy.abs(table[:, None, moving] - table[None, :, moving]).transpose(2, 0, 1),
            trend=OFFSET**2 + SLOPE**2 * numpy.outer(estimates - middle, estimates - middle),
            residuals=residuals - centre,
            slow=(SLOW * (times - times.min())) ** 2,
        )
        keys = [*(names[at] for at in moving), "error", "noise"]
        found = problem.solve(numpy.array([self._constants.get(key, 0.0) for key in keys]))
        self._constants |= dict(zip(keys, map(float, found), strict=True))
        weights = numpy.full(len(names), WEIGHT)
        weights[moving] = WEIGHT * numpy.exp(found[:-2])
        return Posterior(names, weights, table, estimates, times, problem, found, centre, middle)


class Posterior:
    """What is expected after a fit; ``believed`` adds points as if they had been timed as expected."""

    def __init__(
        self, names: list[str], weights: Array, table: Array, estimates: Array, times: Array,
        problem: _Fit, found: Array, centre: float, middle: float,
    ) -> None:  # fmt: skip
        self._names, self._weights, self._table = names, weights, table
        self._known = frozenset(names)
        self._estimates, self._centre, self._middle = estimates, centre, middle
        self._variance = (ERROR * math.exp(found[-2])) ** 2
        self._noise = (NOISE * math.exp(found[-1])) ** 2
        self._residuals, self._diagonal = problem.residuals, self._noise + problem.slow
        self.best = float(times.min())
        self._factor()

    def predict(self, points: Sequence[Mapping[str, float]], estimates: Array) -> tuple[Array, Array]:
        """(mean, standard deviation) of the log time of each point."""
        table, new = self._rows(points)
        cross = self._covariance(table, estimates, self._table, self._estimates) * new[:, None]
        mean = cross @ cho_solve(self._cholesky, self._residuals) + self._centre + estimates
        own = self._variance + OFFSET**2 + (SLOPE * (estimates - self._middle)) ** 2
        solved = cho_solve(self._cholesky, cross.T)
        return mean, numpy.sqrt(numpy.maximum(own - numpy.einsum("ij,ji->i", cross, solved), 1e-12))

    def gain(self, points: Sequence[Mapping[str, float]], estimates: Array) -> Array:
        """Expected improvement over the best time, of the logarithm."""
        mean, deviation = self.predict(points, estimates)
        score = (self.best - mean) / deviation
        density = numpy.exp(-0.5 * score**2) / math.sqrt(2 * math.pi)
        return deviation * (score * ndtr(score) + density)

    def believed(self, points: Sequence[Mapping[str, float]], estimates: Array) -> None:
        """From now on these points are known to take what is expected of them."""
        mean, _ = self.predict(points, estimates)
        table, _ = self._rows(points)
        self._table = numpy.concatenate([self._table, table])
        self._estimates = numpy.concatenate([self._estimates, estimates])
        self._residuals = numpy.concatenate([self._residuals, mean - estimates - self._centre])
        self._diagonal = numpy.concatenate([self._diagonal, numpy.full(len(points), self._noise)])
        self._factor()

    def _rows(self, points: Sequence[Mapping[str, float]]) -> tuple[Array, Array]:
        """Their table; and by what each is nearer to nothing known, for words that no known point has."""
        new = [math.exp(-WEIGHT * sum(v for k, v in one.items() if k not in self._known)) for one in points]
        return _table(points, self._names), numpy.array(new)

    def _covariance(self, some: Array, some_estimates: Array, others: Array, other_estimates: Array) -> Array:
        # Looped over features: a few thousand points by a few hundred by twenty would be a large array at once.
        far = numpy.zeros((len(some), len(others)))
        for at, weight in enumerate(self._weights):
            far += weight * numpy.abs(some[:, at, None] - others[None, :, at])
        trend = numpy.outer(some_estimates - self._middle, other_estimates - self._middle)
        return self._variance * numpy.exp(-far) + OFFSET**2 + SLOPE**2 * trend

    def _factor(self) -> None:
        own = self._covariance(self._table, self._estimates, self._table, self._estimates)
        self._cholesky = cho_factor(own + numpy.diag(self._diagonal), lower=True)


class _Fit:
    """The constants that explain what is known best: logarithms of the factors over the values above."""

    def __init__(self, gaps: Array, trend: Array, residuals: Array, slow: Array) -> None:
        self._gaps, self._trend, self.residuals, self.slow = gaps, trend, residuals, slow
        spreads = [WEIGHT_SPREAD] * len(gaps) + [ERROR_SPREAD, NOISE_SPREAD]
        self._stiff = 1 / numpy.log(spreads) ** 2

    def solve(self, start: Array) -> Array:
        bounds = [(-4.0, 3.0)] * (len(start) - 2) + [(-2.5, 2.5), (-1.5, 3.0)]
        return minimize(
            self.loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": STEPS}
        ).x

    def loss(self, at: Array) -> tuple[float, Array]:
        """Minus the log of likelihood and prior, and its slope."""
        weights = WEIGHT * numpy.exp(at[:-2])
        alike = (ERROR * math.exp(at[-2])) ** 2 * numpy.exp(-numpy.tensordot(weights, self._gaps, 1))
        noise = (NOISE * math.exp(at[-1])) ** 2
        count = len(self.residuals)
        factor = cho_factor(alike + self._trend + numpy.diag(noise + self.slow), lower=True)
        solved = cho_solve(factor, self.residuals)
        loss = 0.5 * self.residuals @ solved + numpy.log(numpy.diag(factor[0])).sum()
        inner = 0.5 * (cho_solve(factor, numpy.eye(count)) - numpy.outer(solved, solved))
        product = inner * alike
        slopes = [
            -weight * float((product * gap).sum()) for weight, gap in zip(weights, self._gaps, strict=True)
        ]
        slopes += [2 * float(product.sum()), 2 * noise * float(numpy.trace(inner))]
        return float(loss + 0.5 * (self._stiff * at**2).sum()), numpy.array(slopes) + self._stiff * at


def _table(points: Sequence[Mapping[str, float]], names: Sequence[str]) -> Array:
    return numpy.array([[point.get(name, 0.0) for name in names] for point in points]).reshape(
        len(points), -1
    )
