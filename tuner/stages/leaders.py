"""Check leaders: where a check is dear, only those whose time could win have one, until enough of them stand."""

from __future__ import annotations

from concurrent.futures import Future

from tuner.stages.check import Check, is_checked
from tuner.stages.compile import job_of, not_rebuilt
from tuner.stages.run import Run
from tuner.stages.stage import When, carry
from tuner.trials.outcome import Trial


class CheckLeaders:
    """In the order of their times. A device that can has several at it at once."""

    name = "check leaders"
    when = When.IN_TIME

    def __init__(self) -> None:
        self._begun: dict[str, Future[Trial]] = {}

    def run(self, run: Run) -> bool:
        asked: set[str] = set()
        while unchecked := [trial for trial in run.leaders() if trial.resolved not in asked]:
            run.check_time()
            for trial in unchecked[: run.options.jobs if run.device.abilities.at_once else 1]:
                self._begin(run, trial)
            asked.add(unchecked[0].resolved)
            self._end(run, unchecked[0])
        return bool(asked)

    def _begin(self, run: Run, trial: Trial) -> None:
        if trial.resolved in self._begun or is_checked(trial):
            return
        if (job := job_of(run, trial)) is not None:
            self._begun[trial.resolved] = carry(run, job, [Check()])

    def _end(self, run: Run, trial: Trial) -> None:
        if is_checked(trial):
            return
        begun = self._begun.pop(trial.resolved, None)
        checked = not_rebuilt(trial) if begun is None else run.answer(begun)
        if (checked.status, checked.validation) != (trial.status, trial.validation):
            run.keep(checked)
