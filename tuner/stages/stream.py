"""The stream of candidates: asked, compiled, judged, journalled, told to the search, until that is done.

Compilers always have the next ones. A device that takes several requests gets each candidate as soon as it is compiled.
A card gets one after another; while it is busy the next ones are asked, and while it waits for compilers it does other
useful work. At a card of another host a few of them wait, so that it never waits for the way there.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from tuner.devices.abilities import Abilities
from tuner.search.trial_of import utc_now
from tuner.stages.ask import Ask
from tuner.stages.run import Run
from tuner.stages.stage import Job, Stage, Step, When, carry
from tuner.trials.outcome import Status, Trial

POLL_S = 0.5  # seconds between two looks at the clock while nothing finishes


class Candidates:
    """``steps``: made with each candidate that is asked; ``meanwhile``: of these the first that has something to do has
    its turn while no candidate is there to be judged."""

    name = "candidates"
    when = When.IN_TIME

    def __init__(self, ask: Ask, steps: Sequence[Step], meanwhile: Sequence[Stage], can: Abilities) -> None:
        self.parts = (ask, *steps, *meanwhile)
        self._ask, self._meanwhile = ask, meanwhile
        self._works_alone = can.works_alone and not can.elsewhere
        self._line = can.line if can.elsewhere else 0
        self._there: set[concurrent.futures.Future[Trial]] = set()  # of those in flight, what a far card has
        ahead = len(steps) if can.at_once else 1
        self._ahead, self._in_turn = steps[:ahead], steps[ahead:]

    def run(self, run: Run) -> bool:
        while True:
            run.check_time()
            if not self._asks_meanwhile(run):
                self._fill(run)
            run.progress.update(run.state)
            if not run.in_flight:
                return bool(run.fresh)
            if self._line:
                self._collect_from_afar(run)
            else:
                self._collect(run)

    def _fill(self, run: Run) -> None:
        for job in self._ask.jobs(run):
            run.in_flight[carry(run, job, self._ahead)] = job

    def _collect(self, run: Run) -> None:
        """Judge the first candidate that is there. One at a time: workers get the next to compile meanwhile."""
        finished = [future for future in run.in_flight if future.done()]
        if not finished and any(stage.run(run) for stage in self._meanwhile):
            return
        if not finished:
            finished = self._wait(run, run.in_flight)
        if not finished:
            return
        future = min(finished, key=lambda future: run.in_flight[future].trial.number)
        future.result()  # a bug goes up
        job = run.in_flight.pop(future)
        with run.usage.busy(), self._announced(run, job), self._asking_meanwhile(run):
            trial = self._judged(run, job)
        self._take(run, job, trial)

    def _collect_from_afar(self, run: Run) -> None:
        """Line up what is compiled, then take the verdicts that have come. What runs there cannot hurt this process:
        nothing is announced."""
        self._line_up(run)
        if not self._there and any(stage.run(run) for stage in self._meanwhile):
            return
        full = len(self._there) >= self._line
        with run.usage.busy() if self._there else contextlib.nullcontext():
            judged = self._wait(run, self._there if full else run.in_flight)
            for future in sorted(
                self._there.intersection(judged), key=lambda one: run.in_flight[one].trial.number
            ):
                self._there.remove(future)
                trial = future.result()  # a bug goes up
                self._take(run, run.in_flight.pop(future), trial)

    def _line_up(self, run: Run) -> None:
        """The first candidates that are compiled, while there is room in the line."""
        while len(self._there) < self._line:
            compiled = [future for future in run.in_flight.keys() - self._there if future.done()]
            if not compiled:
                return
            future = min(compiled, key=lambda future: run.in_flight[future].trial.number)
            trial, job = future.result(), run.in_flight.pop(future)
            there = carry(run, job, self._in_turn) if trial.status is Status.OK else future
            run.in_flight[there] = job
            self._there.add(there)

    def _take(self, run: Run, job: Job, trial: Trial) -> None:
        if job.compiled is not None:
            run.compiled[trial.resolved] = job.compiled
        run.take(dataclasses.replace(trial, finished=utc_now()))

    def _wait(
        self, run: Run, futures: Iterable[concurrent.futures.Future[Trial]]
    ) -> list[concurrent.futures.Future[Trial]]:
        done, _ = concurrent.futures.wait(
            futures, timeout=run.patience(POLL_S), return_when=concurrent.futures.FIRST_COMPLETED
        )
        return list(done)

    def _judged(self, run: Run, job: Job) -> Trial:
        """What comes of a candidate by the steps that waited for their turn."""
        if not self._in_turn or job.trial.status is not Status.OK:
            return job.trial
        return carry(run, job, self._in_turn).result()

    def _asks_meanwhile(self, run: Run) -> bool:
        """Is a candidate there, with which a card will be busy while the next ones are chosen?"""
        return self._works_alone and any(future.done() for future in run.in_flight)

    @contextlib.contextmanager
    def _asking_meanwhile(self, run: Run) -> Iterator[None]:
        """Choose and submit the next candidates in a block that leaves search and journal alone: on a card that is what
        it would wait for most. What is asked does not depend on when (``search``)."""
        if not self._works_alone:
            yield
            return
        with concurrent.futures.ThreadPoolExecutor(1) as helper:
            asked = helper.submit(self._fill, run)
            yield
        asked.result()

    def _announced(self, run: Run, job: Job) -> contextlib.AbstractContextManager[None]:
        """A candidate that runs on a card is written down first: it may take this process or the machine with it."""
        return run.study.attempt(job.trial.resolved) if self._works_alone else contextlib.nullcontext()
