"""Ask: the search for candidates, as many as the compilers need; the journal answers for those that it knows."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.search.trial_of import blamed_trial, trial_of
from tuner.stages.run import Run
from tuner.stages.stage import Job
from tuner.trials.final_order import searched_us
from tuner.trials.outcome import TRANSIENT, Trial

IN_FLIGHT_PER_JOB = 2  # one compiles, one waits: workers are never idle, and little is lost at the end


class Ask:
    """Who is known is not evaluated again, nor one that took the tuner down when it ran on this card."""

    name = "ask"

    def jobs(self, run: Run) -> Iterator[Job]:
        """Candidates to be evaluated, while fewer are in flight than compilers need."""
        most = IN_FLIGHT_PER_JOB * run.options.jobs
        while len(run.in_flight) < most and (candidate := run.search.ask()):
            run.check_time()
            known = run.answers.get(candidate.resolved)
            if known is not None and known.status not in TRANSIENT:
                self._answered(run, candidate.number, known)
            elif run.options.resume and (reason := run.study.blame(candidate.resolved)):
                run.take(blamed_trial(candidate, reason, run.problem, run.device))
            else:
                yield Job(trial=trial_of(candidate, run.problem, run.device), legal=candidate.legal)

    def _answered(self, run: Run, number: int, known: Trial) -> None:
        if known.resolved in run.ahead:
            run.ahead.pop(known.resolved).cancel()
        run.known[known.resolved] = known
        run.search.tell(number, searched_us(known))
