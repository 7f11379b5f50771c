"""What a tune is asked for, and what it found."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from kernel_space.core.rules import Legal
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.devices.device import Device
from tuner.report.write import ReportFiles
from tuner.space.count import Count
from tuner.tables.merge import Decision
from tuner.trials.outcome import Status, Trial
from tuner.tune import results

COMPILE_TIMEOUT_S = 60.0  # a candidate takes half a second; two-minute compiles are known, and not worth it


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """``trials``: distinct legal candidates; None is 200, or all when at most 300 are legal. ``timeout_s``: seconds
    for the search, None for no limit. ``jobs``: compile workers. ``out``: folder of results. ``cache_dir``: of compiled
    kernels, None for the user's. ``resume``: let the journal answer for candidates evaluated before.
    ``count_space``: also count legal and rejected points for the report (seconds).
    """

    trials: int | None = None
    timeout_s: float | None = None
    jobs: int = os.cpu_count() or 1
    seed: int = 0
    out: Path = Path("results")
    cache_dir: Path | None = None
    compile_timeout_s: float = COMPILE_TIMEOUT_S
    resume: bool = True
    count_space: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneResult:
    """What a tune found.

    ``trials``: all of the journal, of earlier runs too, in the order in which they were first finished. ``winner`` is
    the fastest against which nothing speaks, ``legal`` its config with its budget, ``default`` the default rule's
    trial. ``fresh`` and ``known``: trials of this run's search that were evaluated now, or before. ``stopped``: empty,
    ``timeout`` or ``interrupted``. ``decision`` says what became of the winner's row; ``facts`` are the report's lines
    about this run.
    """

    problem: GemmProblem
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

    @property
    def counts(self) -> dict[Status, int]:
        """Status -> trials, the points that were proposed but not compiled included."""
        return results.status_counts([*self.trials, *self.illegal])

    def failure_summary(self) -> str:
        """One line for a tune without a winner."""
        counts = (
            ", ".join(f"{count} {status}" for status, count in self.counts.items()) or "no trial was made"
        )
        return f"no candidate of {self.problem} on {self.device.name} could be used: {counts}"
