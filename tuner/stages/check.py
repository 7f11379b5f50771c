"""Check: the device's verdict on a kernel's results; and once more, in the time that a card has left."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future

from tuner.search.trial_of import utc_now
from tuner.stages.compile import legal_of
from tuner.stages.run import Run
from tuner.stages.stage import Job, When, carry
from tuner.trials.checked import Check as Checked
from tuner.trials.checked import check_of
from tuner.trials.outcome import Outcome, Trial

PASSED = "passed"  # Trial.validation of a kernel whose results were checked


class Check:
    """One that fails keeps the time that it may have; the search was told that."""

    name = "check"

    def start(self, run: Run, job: Job) -> Future[Outcome]:
        return run.device.check(job.kernel, job.legal, run.problem)

    def finish(self, job: Job, answer: Outcome, seconds: float) -> Trial:
        passed = answer.reason or PASSED
        return dataclasses.replace(
            job.trial,
            status=answer.status,
            reason="" if answer.ok else answer.reason,
            validation=passed if answer.ok else f"{answer.status}: {answer.reason}",
            validate_seconds=seconds,
            finished=utc_now(),
        )


class CheckAgain:
    """While nothing is there to be judged, leaders on fresh operands. Races may be rare."""

    name = "check again"
    when = When.IN_TIME

    def run(self, run: Run) -> bool:
        leaders = [trial for trial in run.leaders() if trial.resolved in run.compiled]
        if (trial := run.usage.least_checked(leaders)) is None:
            return False
        job = Job(trial=trial, legal=legal_of(run, trial), compiled=run.compiled[trial.resolved])
        with run.usage.spare(trial.resolved):
            checked = carry(run, job, [Check()]).result()
        if not checked.ok:
            run.keep(checked)
        return True


def is_checked(trial: Trial) -> bool:
    """Has a device said that the results are right?"""
    return trial.ok and check_of(trial.validation) is not Checked.NONE
