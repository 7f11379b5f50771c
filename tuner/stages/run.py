"""What a tune is asked for, what it is about, and what has been found so far."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal
from kernel_space.places import user_results
from tuner.devices.device import Device
from tuner.search.prefilter import count_filtered
from tuner.search.progress import Progress, State
from tuner.search.usage import Usage
from tuner.space.space import SearchSpace
from tuner.stages.compile import Pool
from tuner.stages.stage import Job
from tuner.trials.candidate import Asks
from tuner.trials.outcome import REFUTED, Status, Trial
from tuner.trials.rank_stability import ranked
from tuner.trials.study import Study

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel
    from tuner.compile.pool import CompileResult
    from tuner.finals.finals import FinalResult
    from tuner.report.write import ReportFiles
    from tuner.space.count import Count
    from tuner.tables.merge import Decision

COMPILE_TIMEOUT_S = 60.0  # a candidate takes half a second; two-minute compiles are known, and not worth it
TIMED_OUT, INTERRUPTED = "timeout", "interrupted"
LEADERS = 10  # checked where that is dear: the winner and those that could take its place


Answer = TypeVar("Answer")


class OutOfTime(Exception):
    """The deadline has passed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """``trials``: distinct legal candidates; None is 200, or all when at most 300 are legal. ``timeout_s``: seconds
    for the search, None for no limit. ``jobs``: compile workers. ``out``: folder of results. ``cache_dir``: of compiled
    kernels, None for the user's. ``resume``: let the journal answer for candidates evaluated before.
    ``count_space``: also count legal and rejected points for the report (seconds). ``retimes``: of known
    candidates only; the page of the sweep that found them stays, and a search that is stopped leaves the table alone.
    """

    trials: int | None = None
    timeout_s: float | None = None
    jobs: int = os.cpu_count() or 1
    seed: int = 0
    out: Path = dataclasses.field(default_factory=user_results)
    cache_dir: Path | None = None
    compile_timeout_s: float = COMPILE_TIMEOUT_S
    resume: bool = True
    count_space: bool = True
    retimes: bool = False


@dataclasses.dataclass(kw_only=True)
class Run:
    """One tune.

    What it is about: ``default`` is the default rule's resolved config, which is in every final; ``start``: when it
    began, ``ready``: since when the device waits for candidates, by ``time.monotonic()``; ``ahead``: what is being
    compiled already, ``answers``: trials of earlier runs that answer for their candidates, by resolved config.

    What it finds: trials by resolved config, ``fresh`` ones and those ``known`` from the journal; ``watchers``: told of
    every trial that is written down; ``final``: of this run; ``stopped``: empty, ``timeout`` or ``interrupted``; from
    ``order`` on, what the record and the report leave.
    """

    problem: Problem
    device: Device
    options: TuneOptions
    space: SearchSpace
    search: Asks
    study: Study
    pool: Pool
    progress: Progress
    start: float
    ready: float
    default: str | None
    ahead: dict[str, Future[CompileResult]]
    answers: Mapping[str, Trial]

    usage: Usage = dataclasses.field(default_factory=Usage)
    in_flight: dict[Future[Trial], Job] = dataclasses.field(default_factory=dict)
    compiled: dict[str, CompiledKernel] = dataclasses.field(default_factory=dict)
    legals: dict[str, Legal] = dataclasses.field(default_factory=dict)
    fresh: dict[str, Trial] = dataclasses.field(default_factory=dict)
    known: dict[str, Trial] = dataclasses.field(default_factory=dict)
    watchers: list[Callable[[Trial], None]] = dataclasses.field(default_factory=list)
    final: FinalResult | None = None
    stopped: str = ""

    order: list[Trial] = dataclasses.field(default_factory=list)
    decision: Decision | None = None
    illegal: tuple[Trial, ...] = ()
    counted: Count | None = None
    seconds: float = 0.0
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    report: ReportFiles | None = None

    @property
    def deadline(self) -> float | None:
        """A time of ``time.monotonic()``."""
        return None if self.options.timeout_s is None else self.start + self.options.timeout_s

    def check_time(self) -> None:
        """Raises ``OutOfTime``."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise OutOfTime

    def patience(self, most_s: float) -> float:
        """Seconds to wait for something, at most until the deadline."""
        return most_s if self.deadline is None else max(0.0, min(most_s, self.deadline - time.monotonic()))

    def ranked(self) -> list[Trial]:
        """Trials against which nothing speaks, the best first (``rank_stability``)."""
        return ranked(self.study.trials.values())

    def leaders(self) -> list[Trial]:
        return self.ranked()[:LEADERS]

    def refuted(self) -> set[str]:
        """Configs that were found wrong, whatever a table says of them."""
        return {trial.resolved for trial in self.study.trials.values() if trial.status in REFUTED}

    def answer(self, future: Future[Answer]) -> Answer:
        """What it gives. A device that has several candidates at a time goes on without us: raises ``OutOfTime``."""
        leaves = self.deadline is not None and self.device.abilities.at_once
        if leaves and not concurrent.futures.wait([future], timeout=self.patience(math.inf)).done:
            raise OutOfTime
        return future.result()

    def take(self, trial: Trial) -> None:
        """Write down what came of a candidate, then let the search go on from it."""
        self._write(trial)
        self.fresh[trial.resolved] = trial
        self.search.tell(trial.number, trial.us)

    def keep(self, trial: Trial) -> None:
        """The journal's latest word on a candidate that was evaluated before."""
        self._write(trial)
        for group in (self.fresh, self.known):
            if trial.resolved in group:
                group[trial.resolved] = trial

    def _write(self, trial: Trial) -> None:
        self.study.append(trial)
        self.progress.trial(trial)
        for watcher in self.watchers:
            watcher(trial)

    def cancel(self) -> None:
        """Give up what is still being compiled."""
        for job in self.in_flight.values():
            if job.compiling is not None:
                job.compiling.cancel()
        for future in self.ahead.values():
            future.cancel()
        self.in_flight.clear()
        self.ahead.clear()

    @property
    def state(self) -> State:
        trials = [*self.known.values(), *self.fresh.values()]
        best = min((trial for trial in trials if trial.ok), key=lambda trial: trial.us or 0, default=None)
        return State(
            done=len(trials),
            total=self.search.planned,
            known=len(self.known),
            failed=sum(trial.status is not Status.OK for trial in trials),
            filtered=count_filtered(self.search.rejected),
            compiling=len(self.in_flight),
            best_us=best.us if best else None,
            kind=str(self.device.kind),
            workers=tuple(self._compiling()),
        )

    def _compiling(self) -> Iterator[str]:
        """Of each candidate that a worker has: the knobs that are not the default's."""
        for job in self.in_flight.values():
            if job.compiling is not None and job.compiling.running():
                usual = (self.default or "").split()
                yield (
                    " ".join(knob for knob in job.trial.resolved.split() if knob not in usual)
                    or "the default"
                )
