"""What a stage of a tune is, and how a candidate is carried through the steps that are made with each of them."""

from __future__ import annotations

import dataclasses
import enum
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from kernel_space.core.rules import Legal
from tuner.trials.outcome import Status, Trial

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel
    from tuner.stages.run import Run


class When(enum.Enum):
    """Which end of the search a stage outlives."""

    IN_TIME = "not when the time is up"
    LATE = "also when the time is up"
    ALWAYS = "also when the user has interrupted the search"


class Stage(Protocol):
    """A part of a tune. What it needs to know and what it finds are in ``Run``."""

    name: str
    when: When

    def run(self, run: Run) -> bool:
        """Do it: all of it, or where other stages have their turn in between, a piece. False: there was nothing to do.

        Raises ``OutOfTime`` when the deadline has passed; the journal is whole then.
        """
        ...


@dataclasses.dataclass(kw_only=True)
class Job:
    """A candidate on its way. ``trial``: what came of it so far; ``compiled``: its kernel, once there is one;
    ``compiling``: what can be cancelled."""

    trial: Trial
    legal: Legal
    compiled: CompiledKernel | None = None
    compiling: Future[Any] | None = None

    @property
    def kernel(self) -> CompiledKernel:
        """What the steps behind the compilation are about."""
        assert self.compiled is not None, "a step was begun although the compilation did not end well"
        return self.compiled


class Step(Protocol):
    """What is done with each candidate. It is begun here and done anywhere: in another process, on another host."""

    name: str

    def start(self, run: Run, job: Job) -> Future[Any]:
        """Begin; the future's exception is no fault of the candidate. Any thread may call it."""
        ...

    def finish(self, job: Job, answer: Any, seconds: float) -> Trial:
        """``job.trial`` with ``answer``, for which it waited ``seconds``. Any thread may call it."""
        ...


def carry(run: Run, job: Job, steps: Sequence[Step]) -> Future[Trial]:
    """Begin with the first of ``steps``; each other one is begun when the one before ended well, by the thread that
    completed it. What came of the candidate; an exception is a bug or the end of a device."""
    whole: Future[Trial] = Future()
    _begin(run, job, steps, whole)
    return whole


def _begin(run: Run, job: Job, steps: Sequence[Step], whole: Future[Trial]) -> None:
    step, *others = steps
    start = time.perf_counter()

    def end(answer: Future[Any]) -> None:
        try:
            job.trial = step.finish(job, answer.result(), round(time.perf_counter() - start, 6))
            if others and job.trial.status is Status.OK:
                _begin(run, job, others, whole)
            else:
                whole.set_result(job.trial)
        except BaseException as error:
            whole.set_exception(error)

    step.start(run, job).add_done_callback(end)
