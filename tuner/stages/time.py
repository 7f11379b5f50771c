"""Time: what the search is told of a candidate, and what the leaders are chosen by."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future

from tuner.stages.run import Run
from tuner.stages.stage import Job
from tuner.trials.outcome import Outcome, Trial


class Time:
    name = "time"

    def start(self, run: Run, job: Job) -> Future[Outcome]:
        return run.device.time(job.kernel, job.legal, run.problem)

    def finish(self, job: Job, answer: Outcome, seconds: float) -> Trial:
        trial = dataclasses.replace(
            job.trial, status=answer.status, reason=answer.reason, time_seconds=seconds
        )
        if not answer.ok:
            return trial
        if answer.timing is None:
            raise AssertionError(f"device {trial.device} says OK without a time for {trial.resolved}")
        return trial.with_timing(answer.timing)
