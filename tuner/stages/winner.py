"""Check the winner: more than the others were; the next one takes its place if that fails."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future

from tuner.search.trial_of import utc_now
from tuner.stages.compile import job_of, not_rebuilt
from tuner.stages.final import Final
from tuner.stages.leaders import CheckLeaders
from tuner.stages.report import count
from tuner.stages.run import Run
from tuner.stages.stage import Job, When, carry
from tuner.trials.checked import THEN
from tuner.trials.outcome import Outcome, Trial


class CheckFull:
    """Of a trial that was checked as a candidate."""

    name = "check in full"

    def start(self, run: Run, job: Job) -> Future[Outcome]:
        return run.device.check_full(job.kernel, job.legal, run.problem)

    def finish(self, job: Job, answer: Outcome, seconds: float) -> Trial:
        trial = job.trial
        said = answer.reason if answer.ok else f"{answer.status}: {answer.reason}"
        return dataclasses.replace(
            trial,
            status=answer.status,
            reason="" if answer.ok else answer.reason,
            validation=f"{trial.validation.partition(THEN)[0]}{THEN}{said}",
            validate_seconds=trial.validate_seconds + seconds,
            finished=utc_now(),
        )


class CheckWinner:
    """``leaders`` and ``final`` have their turn again when a winner fails."""

    name = "check the winner"
    when = When.IN_TIME

    def __init__(self, leaders: CheckLeaders, final: Final | None) -> None:
        self._leaders, self._final = leaders, final

    def run(self, run: Run) -> bool:
        while leaders := run.leaders():
            run.check_time()
            if self._stands(run, leaders[0]):
                return True
            self._leaders.run(run)
            if self._final is not None and self._final.is_owed(run):
                self._final.run(run)
        return False

    def _stands(self, run: Run, trial: Trial) -> bool:
        if (job := job_of(run, trial)) is None:
            checked = not_rebuilt(trial)
        else:
            with run.usage.busy():
                waiting = carry(run, job, [CheckFull()])
                if run.device.abilities.at_once:  # a worker's time is no reason to wait
                    count(run)
                checked = run.answer(waiting)
        if (checked.status, checked.validation) != (trial.status, trial.validation):
            run.keep(checked)
        return checked.ok
