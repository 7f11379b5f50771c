"""What a tune found."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal
from tuner.devices.device import Device
from tuner.report.write import ReportFiles
from tuner.space.count import Count
from tuner.stages.compile import legal_of
from tuner.stages.run import Run
from tuner.tables.merge import Decision
from tuner.trials.outcome import Status, Trial


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneResult:
    """What a tune found.

    ``trials``: all of the journal, of earlier runs too, in the order in which they were first finished. ``winner`` is
    the fastest against which nothing speaks, ``legal`` its config with its budget, ``default`` the default rule's
    trial. ``fresh`` and ``known``: trials of this run's search that were evaluated now, or before. ``stopped``: empty,
    ``timeout`` or ``interrupted``. ``decision`` says what became of the winner's row; ``facts`` are the report's lines
    about this run.
    """

    problem: Problem
    device: Device
    trials: tuple[Trial, ...]
    illegal: tuple[Trial, ...]
    winner: Trial | None
    runner_up: Trial | None
    default: Trial | None
    legal: Legal | None
    space: Count | None
    planned: int
    fresh: int
    known: int
    stopped: str
    seconds: float
    journal: Path
    decision: Decision | None
    facts: Mapping[str, str]
    report: ReportFiles

    @classmethod
    def of(cls, run: Run) -> Self:
        """Of a tune whose last stage is done."""
        assert run.report is not None, "a tune ends with its report"
        order, trials = run.order, run.study.trials
        return cls(
            problem=run.problem,
            device=run.device,
            trials=tuple(trials.values()),
            illegal=run.illegal,
            winner=order[0] if order else None,
            runner_up=order[1] if len(order) > 1 else None,
            default=None if run.default is None else trials.get(run.default),
            legal=legal_of(run, order[0]) if order else None,
            space=run.counted,
            planned=run.search.planned,
            fresh=len(run.fresh),
            known=len(run.known),
            stopped=run.stopped,
            seconds=run.seconds,
            journal=run.study.path,
            decision=run.decision,
            facts=run.facts,
            report=run.report,
        )

    @property
    def counts(self) -> dict[Status, int]:
        """Status -> trials, the points that were proposed but not compiled included."""
        return status_counts([*self.trials, *self.illegal])

    def failure_summary(self) -> str:
        """One line for a tune without a winner."""
        counts = (
            ", ".join(f"{count} {status}" for status, count in self.counts.items()) or "no trial was made"
        )
        return f"no candidate of {self.problem} on {self.device.name} could be used: {counts}"


def status_counts(trials: Iterable[Trial]) -> dict[Status, int]:
    """Status -> trials, in the order of the enum."""
    found = [trial.status for trial in trials]
    return {status: found.count(status) for status in Status if status in found}
