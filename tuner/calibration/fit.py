"""Constants of ``Effort`` from measured times, kernel by kernel: what a time is estimated by where nobody measured.

Least squares on the logarithm of the time, by Levenberg and Marquardt. A trial counts by how near it is to the best of
its problem: a search wants the fast ones right. Constants stay near what nominal rates say where trials do not tell.

Kernels whose efforts have the same names are a family: constants of all its trials together come first, and those of a
kernel stay near them. So a kernel with few trials, or with none of the layers at hand, is judged by its like.

What the result is worth is found by leaving out: constants from all layers but one estimate the trials of that one. A
layer is what is neither batch nor compiled: (K, N) of a GEMM.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy

from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernel_of, parse_config
from kernel_space.core.traits import Effort, Rates, traits_of
from tuner.calibration.measured_trials import Measurement

LEAST_TRIALS = 24  # of a family; a kernel of it needs one
NEAR = 1.5  # trials within so many times the best of their problem say how good an estimate is
WEIGHT = 1.5  # power of (best of the problem / trial) that a trial counts with
# What a constant may be off before trials say so, by what a trial may be off: the log of a factor, and a share.
FACTOR_STIFFNESS, SHARE_STIFFNESS = 0.07, 0.5
# The same of a kernel, from its family's.
OWN_FACTOR_STIFFNESS, OWN_SHARE_STIFFNESS = 0.15, 0.7
STEPS = 60
_NUDGE = 1e-5
_CONVERGED = 1e-4

Key = tuple[str, str]  # operator, kernel
Names = tuple[tuple[str, ...], tuple[str, ...]]  # of factors, of shares
Vector = Any  # numpy.ndarray: numpy's own types say no more


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """One measured time of a kernel that states its effort. ``weight``: what it counts."""

    problem: Problem
    config: KernelConfig
    effort: Effort
    us: float
    weight: float
    best_us: float

    @property
    def kernel(self) -> Key:
        return self.problem.operator, self.config.kernel

    @property
    def names(self) -> Names:
        return self.effort.needs, tuple(self.effort.choices)

    @property
    def layer(self) -> tuple[int, ...]:
        return layer_of(self.problem)


def layer_of(problem: Problem) -> tuple[int, ...]:
    """The sizes that are neither batch nor compiled."""
    forms = problem.forms()
    return tuple(
        size for name, size in problem.sizes.items() if not (forms[name].batch or forms[name].compiled)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constants:
    """Of one kernel, as ``Effort.us`` takes them."""

    factors: Mapping[str, float]
    shares: Mapping[str, float]

    def us(self, effort: Effort) -> Any:
        return effort.us(self.factors, self.shares)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """Constants of all trials, and of each kernel's."""

    common: Constants
    kernels: Mapping[Key, Constants]

    def of(self, kernel: Key) -> Constants:
        return self.kernels.get(kernel, self.common)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A problem estimated without its layer. ``errors``: log of estimate over time, of each kernel's near trials.

    ``loss``: how many times as slow as the best trial the one is that the estimates chose.
    """

    problem: Problem
    errors: Mapping[str, tuple[float, ...]]
    loss: float


# ------------------------------------------------------------------ samples


def samples_of(measured: Iterable[Measurement], arch: Arch, rates: Rates) -> list[Sample]:
    """Of the kernels that state their effort for ``arch``; others are left out."""
    found = list(measured)
    best: dict[Problem, float] = collections.defaultdict(lambda: math.inf)
    for one in found:
        best[one.problem] = min(best[one.problem], one.us)
    samples = []
    for one in found:
        config = parse_config(one.problem.operator, arch, one.config)
        effort = traits_of(kernel_of(config, one.problem)).effort
        if effort is not None:
            weight = (best[one.problem] / one.us) ** WEIGHT
            samples.append(
                Sample(
                    problem=one.problem,
                    config=config,
                    effort=effort(config, one.problem, rates),
                    us=one.us,
                    weight=weight,
                    best_us=best[one.problem],
                )
            )
    return samples


def by_kernel(samples: Iterable[Sample]) -> dict[Key, list[Sample]]:
    """In order of their names."""
    found: dict[Key, list[Sample]] = collections.defaultdict(list)
    for sample in samples:
        found[sample.kernel].append(sample)
    return dict(sorted(found.items()))


def by_family(samples: Iterable[Sample]) -> dict[Names, list[Sample]]:
    """Those whose constants have the same names, where there are enough."""
    found: dict[Names, list[Sample]] = collections.defaultdict(list)
    for sample in samples:
        found[sample.names].append(sample)
    return {names: own for names, own in found.items() if len(own) >= LEAST_TRIALS}


# ------------------------------------------------------------------ fitting


def families(samples: Iterable[Sample]) -> dict[Names, Family]:
    """Each fitted: all of its trials first, then each kernel's."""
    found = {}
    for names, own in by_family(samples).items():
        common = fit(own)
        kernels = {key: fit(trials, common) for key, trials in by_kernel(own).items()}
        found[names] = Family(common=common, kernels=kernels)
    return found


def fit(samples: Sequence[Sample], around: Constants | None = None) -> Constants:
    """The constants of at least one sample; ``around``: what they stay near, by default nominal rates."""
    effort = stacked([sample.effort for sample in samples])
    times = numpy.log([sample.us for sample in samples])
    weights = numpy.array([sample.weight for sample in samples])
    needs, choices = samples[0].effort.needs, tuple(samples[0].effort.choices)
    stiffness, start = _prior(needs, choices, around)

    def constants(at: Vector) -> Constants:
        values = [float(value) for value in at]
        return Constants(
            factors={name: math.exp(value) for name, value in zip(needs, values, strict=False)},
            shares=dict(zip(choices, values[len(needs) :], strict=True)),
        )

    def residuals(at: Vector) -> Vector:
        errors = weights * (numpy.log(constants(at).us(effort)) - times)
        return numpy.concatenate([errors, stiffness * (at - start)])

    return constants(_least_squares(residuals, start))


def _prior(needs: Sequence[str], choices: Sequence[str], around: Constants | None) -> tuple[Vector, Vector]:
    """(stiffness, where nothing pulls) of each constant."""
    if around is None:
        stiffness = [FACTOR_STIFFNESS] * len(needs) + [SHARE_STIFFNESS] * len(choices)
        return numpy.array(stiffness), numpy.zeros(len(stiffness))
    stiffness = [OWN_FACTOR_STIFFNESS] * len(needs) + [OWN_SHARE_STIFFNESS] * len(choices)
    start = [*(math.log(around.factors[name]) for name in needs), *(around.shares[name] for name in choices)]
    return numpy.array(stiffness), numpy.array(start)


def stacked(efforts: Sequence[Effort]) -> Effort:
    """One effort whose numbers are arrays."""

    def array(values: Iterable[float]) -> Any:
        return numpy.array(list(values), dtype=float)

    def arrays(name: str) -> dict[str, Any]:
        keys = getattr(efforts[0], name)
        return {key: array(getattr(effort, name)[key] for effort in efforts) for key in keys}

    return Effort(
        steps=array(effort.steps for effort in efforts),
        turns=array(effort.turns for effort in efforts),
        **{name: arrays(name) for name in ("step", "turn", "beside", "once", "choices")},
    )


def _least_squares(residuals: Any, start: Vector) -> Vector:
    """Where the sum of squares is least, from ``start`` downhill."""
    at, now, damping = start, residuals(start), 1e-2
    for _ in range(STEPS):
        jacobian = numpy.stack([_slope(residuals, at, now, index) for index in range(len(at))], axis=1)
        normal, gradient = jacobian.T @ jacobian, jacobian.T @ now
        for _ in range(8):
            step = numpy.linalg.solve(normal + damping * numpy.eye(len(at)), -gradient)
            then = residuals(at + step)
            if then @ then < now @ now:
                break
            damping *= 4
        else:
            return at
        at, now, damping = at + step, then, max(damping / 3, 1e-6)
        if numpy.abs(step).max() < _CONVERGED:
            return at
    return at


def _slope(residuals: Any, at: Vector, now: Vector, index: int) -> Vector:
    moved = at.copy()
    moved[index] += _NUDGE
    return (residuals(moved) - now) / _NUDGE


# ------------------------------------------------------------------ what it is worth


def leave_layers_out(samples: Sequence[Sample]) -> list[LeftOut]:
    """Each problem, estimated by constants from the other layers; none if there is only one layer."""
    found = []
    for layer in sorted({sample.layer for sample in samples}):
        others = families(sample for sample in samples if sample.layer != layer)
        left: dict[Problem, list[Sample]] = collections.defaultdict(list)
        for one in samples:
            if one.layer == layer and one.names in others:
                left[one.problem].append(one)
        found += [_left_out(problem, own, others) for problem, own in sorted(left.items(), key=_by_text)]
    return found


def _by_text(item: tuple[Problem, Any]) -> str:
    return f"{item[0].operator} {item[0]}"


def _left_out(problem: Problem, samples: Sequence[Sample], others: Mapping[Names, Family]) -> LeftOut:
    estimates = [float(others[one.names].of(one.kernel).us(one.effort)) for one in samples]
    errors = collections.defaultdict(list)
    for one, us in zip(samples, estimates, strict=True):
        if one.us <= NEAR * one.best_us:
            errors[one.config.kernel].append(math.log(us / one.us))
    _, chosen = min(zip(estimates, samples, strict=True), key=lambda pair: pair[0])
    return LeftOut(
        problem=problem,
        errors={name: tuple(own) for name, own in errors.items()},
        loss=chosen.us / chosen.best_us,
    )


def error_of(kernel: str, left_out: Iterable[LeftOut]) -> float | None:
    """What an estimate of ``kernel`` is off, as a share: root mean square over near trials; None without any."""
    errors = [error for one in left_out for error in one.errors.get(kernel, ())]
    return math.expm1(math.sqrt(sum(error**2 for error in errors) / len(errors))) if errors else None


def losses(left_out: Sequence[LeftOut]) -> tuple[float, float]:
    """(geometric mean, largest) loss."""
    found = [one.loss for one in left_out]
    return math.exp(sum(map(math.log, found)) / len(found)), max(found)
