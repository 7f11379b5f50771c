"""Refine: while a card waits for compilers, leaders are timed against one another, which leaves fewer for the final."""

from __future__ import annotations

from tuner.finals.early_rounds import Refinement
from tuner.finals.finals import Contender, FinalError, choose_leaders
from tuner.stages.final import contender_of
from tuner.stages.run import Run
from tuner.stages.stage import When


class Refine:
    """A visit to the card at a time."""

    name = "refine"
    when = When.IN_TIME

    def __init__(self) -> None:
        self._refinement: Refinement | None = None
        self._is_over = False

    def run(self, run: Run) -> bool:
        if self._is_over:
            return False
        if self._refinement is None:
            self._refinement = Refinement(run.device, run.problem)
        leaders = choose_leaders(run.ranked())
        there = [contender_of(run, trial) for trial in leaders if trial.resolved in run.compiled]
        group = self._refinement.next_group([one for one in there if one is not None])
        if not group:
            return False
        self._visit(run, self._refinement, group)
        return True

    def _visit(self, run: Run, refinement: Refinement, group: list[Contender]) -> None:
        try:
            with run.usage.refining():
                found = refinement.run(group)
        except FinalError as error:
            run.progress.say(f"{error}; there will be no more early rounds")
            self._is_over = True
            return
        run.usage.rounds = refinement.rounds
        run.usage.ruled_out += len(found.lost)
        for trial in (*found.lost, *found.failed):
            run.keep(trial)
