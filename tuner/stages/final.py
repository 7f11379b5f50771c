"""Final: the leaders are timed against one another; who wins is decided by that alone."""

from __future__ import annotations

from tuner.finals.finals import Contender, FinalError, choose_contenders, run_final
from tuner.search.trial_of import utc_now
from tuner.stages.compile import job_of, not_rebuilt
from tuner.stages.run import Run
from tuner.stages.stage import When
from tuner.trials.final_order import RULED_OUT_BY, contenders_of, in_the_running, latest_final
from tuner.trials.outcome import Trial


class Final:
    """Unless the latest one had just these contenders. Held also when the time is up: only it tells who is the winner.

    Once more while somebody is owed one.
    """

    name = "final"
    when = When.LATE

    def run(self, run: Run) -> bool:
        held = False
        while self._newcomers(run):
            held = True
            if not (self._hold(run) and self.is_owed(run)):
                break
        return held

    def is_owed(self, run: Run) -> bool:
        """To somebody because the kernel that ruled it out has failed since?"""
        running = in_the_running(self._newcomers(run), among=run.study.trials.values())
        return any(RULED_OUT_BY in trial.evidence for trial in running)

    def _newcomers(self, run: Run) -> list[Trial]:
        """Those of the chosen that were not in the latest final."""
        trials = run.study.trials.values()
        there = contenders_of(trials, latest_final(trials))
        return [trial for trial in _chosen(run) if trial.resolved not in there]

    def _hold(self, run: Run) -> bool:
        """Did a contender fail in it?"""
        contenders = [one for trial in _chosen(run) if (one := contender_of(run, trial)) is not None]
        name = f"{utc_now()} {run.problem}"
        try:
            with run.usage.busy():
                run.final = run_final(run.device, contenders, run.problem, name, seed=len(run.study.trials))
        except FinalError as error:
            run.progress.say(f"{error}; the order is that of the search")
            return False
        for trial in (*run.final.trials, *run.final.failed):
            run.keep(trial)
        return bool(run.final.failed)


def contender_of(run: Run, trial: Trial) -> Contender | None:
    """What rounds need of ``trial``; None when it cannot be rebuilt, which is written down."""
    if (job := job_of(run, trial)) is None or job.compiled is None:
        run.keep(not_rebuilt(trial))
        return None
    default = trial.resolved == run.default
    return Contender(trial=trial, compiled=job.compiled, legal=job.legal, default=default)


def _chosen(run: Run) -> list[Trial]:
    return choose_contenders(run.ranked(), run.default)
