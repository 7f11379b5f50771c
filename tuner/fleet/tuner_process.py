"""The process that tunes one problem after another on a cluster, while others do the same: several searches would
share one interpreter otherwise, and cards would wait for it."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import traceback
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, cast

from kernel_space.core.errors import InputError
from tuner.fleet.fleet import Fleet
from tuner.fleet.work import Work

if TYPE_CHECKING:
    from kernel_space.core.problem import Problem
    from tuner.devices.device import Device
    from tuner.search.progress import Progress
    from tuner.tune.driver import TuneOptions

# What a tuner process says: (kind, value).
RESULT, REFUSED, BUG = "result", "refused", "bug"


def main(descriptor: int, parent: int) -> None:
    """Gets a ``Work``, then (problem, options) after (problem, options), until None. Says what a ``Progress`` is told,
    and then a result, a line that refuses, or the traceback of a bug."""
    from tuner.processes import die_with

    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until a tune begins, which knows what to do
    connection = Connection(descriptor)
    work: Work = connection.recv()
    try:
        with Fleet(work.access, say=lambda line: connection.send(("say", line))) as fleet:
            fleet.members.wait_for(lambda: bool(fleet.members.offering(_offer(work))), 30.0)
            work.adopt(fleet)
            while (task := connection.recv()) is not None:
                connection.send(_answer(work, fleet, task, connection))
    except InputError as error:
        connection.send((REFUSED, str(error)))
    except EOFError:
        return


def _offer(work: Work) -> str:
    from tuner.fleet.identity import CARD, SIMULATE

    return work.device if work.device.startswith(CARD) else SIMULATE


def _answer(
    work: Work, fleet: Fleet, task: tuple[Problem, TuneOptions], connection: Connection
) -> tuple[str, Any]:
    problem, options = task
    progress = _told(connection, problem)
    try:
        with _interruptible():
            result = work.tune(fleet, problem, options, progress)
    except KeyboardInterrupt:
        return REFUSED, "interrupted"
    except (InputError, OSError) as error:
        return REFUSED, str(error)
    except Exception:
        return BUG, traceback.format_exc()
    # A device holds connections; who asked has one of its own.
    return RESULT, dataclasses.replace(result, device=cast("Device", None))


@contextlib.contextmanager
def _interruptible() -> Any:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _told(connection: Connection, problem: Problem) -> Progress:
    from tuner.search.progress import Progress

    class Told(Progress):
        """Hands on what it is told."""

        def stage(self, name: str) -> None:
            connection.send(("stage", name))

        def trial(self, trial: Any) -> None:
            connection.send(("trial", trial))

        def update(self, state: Any) -> None:
            if self._clock() >= self._next:
                self._next = self._clock() + self._period
                connection.send(("update", state))

        def finish(self, state: Any) -> None:
            connection.send(("finish", state))

        def say(self, text: str) -> None:
            connection.send(("say", text))

    told = Told(str(problem), terminal=False)
    told._period = 1.0
    return told
