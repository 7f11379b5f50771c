"""What a report is made from, and the numbers in it: order, medians, differences, importance, reasons, counts."""

from __future__ import annotations

import collections
import dataclasses
import importlib.util
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_space.core.arch import Arch
from kernel_space.core.budget import Budget
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator_of
from tuner.devices.classes import DEVICE_CLASSES, DeviceClass
from tuner.space.count import Count
from tuner.trials.outcome import NEVER_COMPILED, Kind, Origin, Status, Trial

if TYPE_CHECKING:
    from tuner.report.data.clock import Clocks
    from tuner.report.data.peers import Peers

PRECEDENCE = (Kind.MEASURED, Kind.SIMULATED, Kind.MODELLED)
IMPORTANCE_METHOD = (
    "share of the impurity decrease of a random forest (64 trees, seed 0) fitted to log(time) over the resolved knobs "
    "(optuna.importance.MeanDecreaseImpurityImportanceEvaluator, scikit-learn)"
)
IMPORTANCE_TRIALS = 10  # fewer say nothing about seventeen knobs
ABSENT = "-"  # of a kernel without the knob
TENSOR_PIPES = {"nvfp4", "fp8", "fp16", "bf16", "tf32"}
NO_TIME = "no time"
TERM_TOLERANCE = 0.01  # of the time: evidence that adds up to it is its breakdown


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """A further part of the report by another module: ``body`` is HTML without external references."""

    title: str
    body: str
    markdown: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """Everything a report shows about one problem on one device.

    ``device_class``: the numbers of ``device`` where that is none of the shipped classes.
    ``trials`` in the order in which they were finished; points that were never compiled may be among
    them (status FILTERED, or ILLEGAL with reason ``rule: why``). ``winner`` and ``runner_up`` default to the two
    fastest of the best kind of time. ``budget`` is the winner's. ``facts`` are lines for the end of the
    report: command, seed, versions, hashes, protocol, what became of the dispatch row. ``cache_dir``: where compiled
    kernels live, None for the user's. ``clocks`` and ``peers`` are filled in when the report is written, unless given:
    timelines of a few candidates from those kernels, and what else was measured on the same machine.
    """

    problem: Problem
    device: str
    arch: Arch
    sm_count: int
    trials: Sequence[Trial]
    device_class: DeviceClass | None = None
    winner: Trial | None = None
    runner_up: Trial | None = None
    budget: Budget | None = None
    space: Count | None = None
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sections: Sequence[Section] = ()
    cache_dir: Path | None = None
    clocks: Clocks | None = None
    peers: Peers | None = None

    @property
    def known_class(self) -> DeviceClass | None:
        """The numbers of ``device``; None for a class that nobody knows here."""
        return self.device_class or DEVICE_CLASSES.get(self.device)

    @property
    def evaluated(self) -> list[Trial]:
        """Trials that were compiled, or should have been."""
        return [trial for trial in self.trials if trial.status not in NEVER_COMPILED]

    @property
    def filtered(self) -> list[Trial]:
        """Legal points that the search proposed and the timing model found hopeless."""
        return [trial for trial in self.trials if trial.status is Status.FILTERED]

    @property
    def illegal(self) -> list[Trial]:
        """Points that the search proposed and a rule rejected."""
        return [trial for trial in self.trials if trial.status is Status.ILLEGAL]


def timed(trials: Iterable[Trial]) -> list[Trial]:
    """Trials that ended well with a time that is one (finite, above 0), of the best kind there is."""
    usable = [trial for trial in trials if trial.ok and _is_time(trial.us)]
    kinds = {trial.kind for trial in usable}
    best = next((kind for kind in PRECEDENCE if kind in kinds), None)
    return [trial for trial in usable if trial.kind is best]


def ranked(trials: Iterable[Trial]) -> list[Trial]:
    """``timed`` from fast to slow, each resolved config once, ties in the order of the trials."""
    seen: dict[str, Trial] = {}
    for trial in sorted(timed(trials), key=microseconds):
        seen.setdefault(trial.resolved, trial)
    return list(seen.values())


def winner_first(trials: Iterable[Trial], winner: Trial) -> list[Trial]:
    """``ranked`` with the winner at its head: among near equals the fastest by nominal time need not have won."""
    return [winner, *(trial for trial in ranked(trials) if trial.resolved != winner.resolved)]


def microseconds(trial: Trial) -> float:
    if trial.us is None:
        raise ValueError(f"trial {trial.number} has no time")
    return trial.us


def numerical_check(winner: Trial) -> str:
    """What is known of the winner's numbers, and what its time is nevertheless."""
    said = winner.validation or "not checked, the tune ended before"
    return said if winner.kind is Kind.MEASURED else f"{said}; its time is {winner.kind}"


def winner_and_runner_up(sweep: Sweep) -> tuple[Trial | None, Trial | None]:
    order = ranked(sweep.trials)
    winner = sweep.winner or (order[0] if order else None)
    others = [trial for trial in order if winner is None or trial.resolved != winner.resolved]
    return winner, sweep.runner_up or (others[0] if others else None)


def default_trial(trials: Iterable[Trial]) -> Trial | None:
    """The default rule's candidate, if it has a time."""
    return next((trial for trial in timed(trials) if trial.origin is Origin.DEFAULT), None)


def convergence(trials: Sequence[Trial]) -> list[tuple[int, float]]:
    """(place in the sweep from 1, best time so far in us) at each improvement."""
    steps: list[tuple[int, float]] = []
    usable = {id(trial) for trial in timed(trials)}
    for place, trial in enumerate(trials, start=1):
        if id(trial) in usable and (not steps or microseconds(trial) < steps[-1][1]):
            steps.append((place, microseconds(trial)))
    return steps


def knobs_of(config: str) -> dict[str, str]:
    """Knob -> printed value of a printed config, whatever the kernel."""
    parts = (item.partition("=") for item in config.split())  # of a journal that may say anything
    return {name: value for name, _, value in parts}


def knob_of(trial: Trial, name: str) -> str:
    """The printed value of one knob; ``ABSENT`` for a kernel without it."""
    return knobs_of(trial.resolved).get(name, ABSENT)


def varying_knobs(trials: Sequence[Trial]) -> list[str]:
    """Knobs that take more than one value among ``trials``, or that some kernels lack, in the order of the configs."""
    names = dict.fromkeys(name for trial in trials for name in knobs_of(trial.resolved))
    return [name for name in names if len({knob_of(trial, name) for trial in trials}) > 1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValueTimes:
    """Times in us of the trials with one value of one knob."""

    value: str
    count: int
    low: float
    quartile_1: float
    median: float
    quartile_3: float
    high: float

    @classmethod
    def of(cls, value: str, times: Sequence[float]) -> ValueTimes:
        ordered = sorted(times)
        if len(ordered) == 1:
            quarters = [ordered[0]] * 3
        else:
            quarters = statistics.quantiles(ordered, n=4, method="inclusive")
        return cls(
            value=value,
            count=len(ordered),
            low=ordered[0],
            quartile_1=quarters[0],
            median=quarters[1],
            quartile_3=quarters[2],
            high=ordered[-1],
        )


def times_per_value(trials: Sequence[Trial], knob: str) -> list[ValueTimes]:
    """One entry per value that was tried, numbers in numeric order."""
    times: dict[str, list[float]] = collections.defaultdict(list)
    for trial in timed(trials):
        times[knob_of(trial, knob)].append(microseconds(trial))
    return [ValueTimes.of(value, times[value]) for value in sorted(times, key=value_order)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Importance:
    """``shares`` of each varying knob, largest first, adding up to 1; empty with the reason in ``note``."""

    shares: Mapping[str, float]
    note: str


def knob_importance(trials: Sequence[Trial]) -> Importance:
    """How much of the differences in log(time) each knob explains, by ``IMPORTANCE_METHOD``."""
    usable = timed(trials)
    names = varying_knobs(usable)
    if len(usable) < IMPORTANCE_TRIALS or not names:
        note = f"Needs {IMPORTANCE_TRIALS} timed trials and a varying knob; there are {len(usable)} and {len(names)}."
        return Importance(shares={}, note=note)
    if len({trial.us for trial in usable}) == 1:
        return Importance(shares={}, note="All trials take the same time.")
    if importlib.util.find_spec("optuna") is None:
        return Importance(
            shares={}, note="Not computed: that needs Optuna, which this machine does not have."
        )
    shares = _forest_shares(
        [(knobs_of(trial.resolved), math.log(microseconds(trial))) for trial in usable], names
    )
    return Importance(shares=shares, note=IMPORTANCE_METHOD)


def _forest_shares(samples: Sequence[tuple[dict[str, str], float]], names: Sequence[str]) -> dict[str, float]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    choices = {
        name: sorted({knobs.get(name, ABSENT) for knobs, _ in samples}, key=value_order) for name in names
    }
    distributions: dict[str, optuna.distributions.BaseDistribution] = {
        name: optuna.distributions.CategoricalDistribution(values) for name, values in choices.items()
    }
    study = optuna.create_study()
    for knobs, value in samples:
        params = {name: knobs.get(name, ABSENT) for name in names}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=value))
    evaluator = optuna.importance.MeanDecreaseImpurityImportanceEvaluator(n_trees=64, seed=0)
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in sorted(found.items(), key=lambda item: -item[1])}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failures:
    """Trials that ended in one way: how many, and one of them."""

    status: str
    count: int
    example: Trial
    reason: str


def failures(trials: Sequence[Trial]) -> list[Failures]:
    """Trials without a usable time by status and reason (numbers in the reason left out), the most frequent first."""
    groups: dict[tuple[str, str], list[Trial]] = collections.defaultdict(list)
    for trial in trials:
        if not (trial.ok and _is_time(trial.us)):
            groups[failure_status(trial), re.sub(r"[0-9]+", "#", failure_reason(trial))].append(trial)
    found = [
        Failures(status=status, count=len(group), example=group[0], reason=failure_reason(group[0]))
        for (status, _), group in groups.items()
    ]
    return sorted(found, key=lambda group: (-group.count, group.status, group.reason))


def failure_status(trial: Trial) -> str:
    return NO_TIME if trial.status is Status.OK else trial.status.value


def failure_reason(trial: Trial) -> str:
    if trial.status is Status.OK:
        return "compiled, but was not timed" if trial.us is None else f"its time is {trial.us} us"
    return trial.reason or "no reason given"


def differences(config: str, base: str) -> dict[str, str]:
    """Knobs of ``config`` that differ from ``base``."""
    there = knobs_of(base)
    return {name: value for name, value in knobs_of(config).items() if there.get(name) != value}


def time_terms(trial: Trial) -> dict[str, float]:
    """The breakdown of the trial's time in us, if its evidence holds one: numbers that add up to the time. A measured
    time has none."""
    if trial.kind is Kind.MEASURED:
        return {}
    terms = {
        name: float(value)
        for name, value in trial.evidence.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    total = sum(terms.values())
    us = trial.us or 0.0
    return terms if terms and abs(total - us) <= TERM_TOLERANCE * us else {}


def operations(problem: Problem) -> float:
    """Useful operations of all pipes."""
    return operator_of(problem).work(problem).total


def tflops(problem: Problem, us: float) -> float:
    """Useful TFLOP/s: the problem's operations over the time."""
    return operations(problem) / us * 1e-6


def dram_bytes(problem: Problem) -> float:
    """What must cross DRAM once: every input and every output."""
    return float(sum(operator_of(problem).tensor_bytes(problem).values()))


def terabytes(problem: Problem, us: float) -> float:
    """Useful TB/s: what must cross DRAM once, over the time."""
    return dram_bytes(problem) / us * 1e-6


def speed(problem: Problem, us: float) -> tuple[float, str]:
    """What people compare: useful TFLOP/s where the tensor pipe works, else useful TB/s."""
    if TENSOR_PIPES & set(operator_of(problem).work(problem).operations):
        return tflops(problem, us), "useful TFLOP/s"
    return terabytes(problem, us), "useful TB/s"


def _is_time(us: float | None) -> bool:
    return us is not None and math.isfinite(us) and us > 0


def value_order(value: str) -> tuple[list[int], str]:
    return ([int(part) for part in re.findall(r"[0-9]+", value)], value)
