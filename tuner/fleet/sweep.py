"""Many problems side by side on a cluster: as many tuner processes as there are cards, each with one at a time."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import multiprocessing.connection
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Any

from kernel_space.core.errors import InputError
from tuner.fleet.devices import device_of, side_by_side, summary
from tuner.fleet.fleet import Fleet
from tuner.fleet.tuner_process import BUG, REFUSED, RESULT
from tuner.fleet.work import Work
from tuner.processes import call_command, start

if TYPE_CHECKING:
    from kernel_space.core.problem import Problem
    from tuner.search.progress import Progress
    from tuner.tune.driver import TuneOptions
    from tuner.tune.tune_result import TuneResult

POLL_S = 1.0
SUMMARY_S = 30.0
TRIES = 2  # tuner processes that may die with one problem

# Options of the next problem, from the number still to come and how many are at work at a time; None: no more.
OptionsFor = Callable[[int, int], "TuneOptions | None"]
ProgressFor = Callable[["Problem | None"], "Progress"]


def sweep(
    fleet: Fleet,
    work: Work,
    problems: Sequence[Problem],
    options: OptionsFor,
    progress: ProgressFor,
) -> Iterator[TuneResult]:
    """One result per problem, when it is there; until the user interrupts. Raises ``InputError`` once the others are
    done, for a problem that could not be tuned."""
    if len(problems) == 1 or side_by_side(fleet, work.device) == 1:
        yield from _one_after_another(fleet, work, problems, options, progress)
    else:
        yield from _Sweep(fleet, work, problems, options, progress).results()


def _one_after_another(
    fleet: Fleet, work: Work, problems: Sequence[Problem], options: OptionsFor, progress: ProgressFor
) -> Iterator[TuneResult]:
    work.adopt(fleet)
    for number, problem in enumerate(problems):
        if (chosen := options(len(problems) - number, 1)) is None:
            return
        result = work.tune(fleet, problem, chosen, progress(problem))
        yield result
        if result.stopped == "interrupted":
            return


class _Tuner:
    """A tuner process and what it is at."""

    def __init__(self, work: Work) -> None:
        self.pipe, end = Pipe()
        self._process = start(
            call_command("tuner.fleet.tuner_process", "main", end.fileno(), os.getpid()),
            pass_fds=[end.fileno()],
            stdout=subprocess.DEVNULL,
        )
        end.close()
        self.pipe.send(work)
        self.problem: Problem | None = None
        self.progress: Progress | None = None

    def begin(self, problem: Problem, options: TuneOptions, progress: Progress) -> None:
        self.problem, self.progress = problem, progress
        self.pipe.send((problem, options))

    def interrupt(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self.pipe.close()


class _Sweep:
    def __init__(
        self,
        fleet: Fleet,
        work: Work,
        problems: Sequence[Problem],
        options: OptionsFor,
        progress: ProgressFor,
    ) -> None:
        self._fleet, self._work, self._options, self._progress = fleet, work, options, progress
        self._waiting = collections.deque(problems)
        self._total = len(problems)
        self._done = 0
        self._tries: collections.Counter[Problem] = collections.Counter()
        self._tuners: list[_Tuner] = []
        self._refusals: list[str] = []
        self._stopping = False
        self._next_summary = time.monotonic() + SUMMARY_S
        self._device = device_of(fleet, work.device, say=progress(None).say)

    def results(self) -> Iterator[TuneResult]:
        try:
            while self._busy() or (self._waiting and not self._stopping):
                try:
                    self._hand_out()
                    yield from self._listen()
                    self._summarize()
                except KeyboardInterrupt:
                    if self._stopping:
                        raise
                    self._stop()
        finally:
            for tuner in self._tuners:
                tuner.end()
        if self._refusals:
            raise InputError("; ".join(dict.fromkeys(self._refusals)))

    def _busy(self) -> list[_Tuner]:
        return [tuner for tuner in self._tuners if tuner.problem is not None]

    def _stop(self) -> None:
        """Nothing new begins; what runs writes down what it has."""
        self._stopping = True
        for tuner in self._busy():
            tuner.interrupt()

    def _hand_out(self) -> None:
        side = side_by_side(self._fleet, self._work.device)
        while self._waiting and not self._stopping and len(self._busy()) < side:
            options = self._options(len(self._waiting), min(side, self._total))
            if options is None:
                self._waiting.clear()
                return
            problem = self._waiting.popleft()
            idle = next((tuner for tuner in self._tuners if tuner.problem is None), None)
            if idle is None:
                idle = _Tuner(self._work)
                self._tuners.append(idle)
            self._tries[problem] += 1
            idle.begin(problem, options, self._progress(problem))

    def _listen(self) -> Iterator[TuneResult]:
        by_pipe: dict[Any, _Tuner] = {tuner.pipe: tuner for tuner in self._tuners}
        for pipe in multiprocessing.connection.wait(list(by_pipe), timeout=POLL_S):
            assert isinstance(pipe, Connection)
            tuner = by_pipe[pipe]
            try:
                kind, value = pipe.recv()
            except (EOFError, OSError):
                self._died(tuner)
                continue
            if kind == RESULT:
                self._end_of(tuner)
                yield dataclasses.replace(value, device=self._device)
            elif kind in (REFUSED, BUG):
                self._refused(tuner, kind, value)
            elif tuner.progress is not None:
                getattr(tuner.progress, kind)(value)
            elif kind == "say":
                self._progress(None).say(value)

    def _end_of(self, tuner: _Tuner) -> None:
        tuner.problem = tuner.progress = None
        self._done += 1

    def _refused(self, tuner: _Tuner, kind: str, line: str) -> None:
        if kind == BUG:
            raise RuntimeError(f"tuning {tuner.problem} failed:\n{line}")
        if not (self._stopping and line == "interrupted"):
            self._refusals.append(line)
        self._end_of(tuner)

    def _died(self, tuner: _Tuner) -> None:
        """Its journal has what it found: another process goes on from there."""
        self._tuners.remove(tuner)
        tuner.end()
        if (problem := tuner.problem) is None:
            return
        if self._stopping or self._tries[problem] >= TRIES:
            self._refusals.append(
                f"{problem}: {TRIES} tuner processes died at it; run the same command again"
            )
            return
        self._progress(problem).say("its tuner process died: another goes on from its journal")
        self._waiting.appendleft(problem)

    def _summarize(self) -> None:
        if time.monotonic() >= self._next_summary:
            self._next_summary = time.monotonic() + SUMMARY_S
            at_work = len(self._busy())
            self._progress(None).say(
                f"{self._done} of {self._total} problems done, {at_work} under way; {summary(self._fleet)}"
            )
