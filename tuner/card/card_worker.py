"""The tuner's side of a card: asks its worker, and turns every way of losing one into a verdict on the candidate.

After a loss the worker is replaced, and the new one must pass the self test before it gets another candidate. A card
that does not is given up with one line; the journal has every verdict until then.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kernel_space.core.errors import InputError
from tuner.card.locks import card_lock
from tuner.card.samples.samples import Samples
from tuner.card.worker.bench import Fidelity, FinalsOptions
from tuner.card.worker.candidate import Case, Loadable
from tuner.card.worker.check import CaseReport
from tuner.card.worker.protocol import BUG, LAUNCHING
from tuner.card.worker.self_test import Health
from tuner.card.worker_process import Died, Hung, StillAlive, Unanswered, WorkerProcess, worker_command
from tuner.trials.outcome import Status

LEAST_FREE = 0.9  # of the memory that the first worker found free, before the next candidate
# Sent from outside (a user, the system short of memory): says nothing yet about the candidate.
OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


class CardLost(InputError):
    """The card does not pass its self test any more, or was exchanged."""


class CandidateFault(Exception):
    """A request that ended without a result: ``status`` is the verdict on its candidate, ``str()`` one line."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds. ``start``: imports and the card's context. A worker itself gives up on a launch after 10 s."""

    start_s: float = 180.0
    health_s: float = 60.0
    case_s: float = 90.0
    time_s: float = 120.0
    final_s: float = 120.0  # per finalist
    attempts: int = 3  # fresh workers until the card is given up
    pause_s: float = 2.0  # before the second one; doubles


class CardWorker:
    """The worker of card ``index`` (as ``cuda:<index>``), started when first asked and whenever the last one is gone.

    ``uuid`` names the lock that keeps two tuners from using the card at once; ``say`` takes lines for the user.
    ``command`` starts a worker; tests have their own. Use it as a context manager or ``close`` it; a worker ends with
    its parent in any case. Not for several threads.
    """

    def __init__(
        self,
        index: int,
        uuid: str,
        *,
        limits: Limits | None = None,
        command: Sequence[str] | None = None,
        say: Callable[[str], None] = lambda line: None,
        lock_folder: Path | None = None,
    ) -> None:
        self.index, self._uuid = index, uuid
        self._limits = limits or Limits()
        self._command = list(command or worker_command(index))
        self._say, self._lock_folder = say, lock_folder
        self._process: WorkerProcess | None = None
        self._begun: WorkerProcess | None = None  # started, and not asked for its health yet
        self._health: Health | None = None
        self.started = 0  # workers so far

    @property
    def uuid(self) -> str:
        return self._uuid

    def begin(self) -> bool:
        """Start the process now instead of with the first request: importing torch and making a context takes seconds.
        Returns at once, True if a worker serves already."""
        if self._process is None and self._begun is None:
            self._begun = WorkerProcess(self._command)
        return self._process is not None

    @property
    def health(self) -> Health:
        """The card as the first worker found it. Raises ``CardLost``."""
        if self._health is None:
            with self._lock():
                self._ready()
        assert self._health is not None
        return self._health

    def check(
        self, candidate: Loadable, cases: Sequence[Case], *, repeats: int, seed: int
    ) -> list[CaseReport]:
        """Every case right, ``repeats`` times. Raises ``CandidateFault`` and ``CardLost``."""
        answer = self._ask(
            {
                "op": "check",
                "candidate": candidate.record(),
                "cases": [case.record() for case in cases],
                "repeats": repeats,
                "seed": seed,
            },
            self._limits.case_s * len(cases),
        )
        return [CaseReport(**report) for report in answer["report"]]

    def time(self, candidate: Loadable, case: Case, fidelity: Fidelity) -> Samples:
        """Raises ``CandidateFault`` and ``CardLost``."""
        request = {
            "op": "time",
            "candidate": candidate.record(),
            "case": case.record(),
            "fidelity": dataclasses.asdict(fidelity),
        }
        return Samples.from_record(self._ask(request, self._limits.time_s)["samples"])

    def finals(self, entries: Sequence[tuple[Loadable, Case]], options: FinalsOptions) -> list[Samples]:
        """Samples of each entry, taken in rounds. Raises ``CandidateFault`` and ``CardLost``."""
        request = {
            "op": "finals",
            "entries": [
                {"candidate": candidate.record(), "case": case.record()} for candidate, case in entries
            ],
            "options": dataclasses.asdict(options),
        }
        answer = self._ask(request, self._limits.final_s * len(entries))
        return [Samples.from_record(one) for one in answer["samples"]]

    def unload(self) -> int:
        """Drop objects and operands; bytes that are free then."""
        return int(self._ask({"op": "unload"}, self._limits.health_s)["free_bytes"])

    def close(self) -> None:
        """End the worker, whatever it is at."""
        processes, self._process, self._begun = (self._process, self._begun), None, None
        for process in processes:
            if process is not None:
                process.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- asking

    def _ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """The answer of a worker that has passed the self test. A worker that somebody killed is asked once more."""
        with self._lock():
            for last in (False, True):
                process = self._ready()
                try:
                    answer = process.ask(request, limit_s)
                except BaseException as error:
                    self._retire()
                    if isinstance(error, Unanswered):
                        if not last and _from_outside(error):
                            self._say(f"{error}; trying again")
                            continue
                        raise CandidateFault(_status_of(error), str(error)) from None
                    raise
                if answer.get("fatal"):
                    self._retire()
                if answer["ok"]:
                    return answer
                raise _fault_of(answer)
        raise AssertionError("unreachable")

    def _ready(self) -> WorkerProcess:
        """A worker whose card is in order. Raises ``CardLost`` when none can be had."""
        if self._process is not None:
            return self._process
        pause, reason = self._limits.pause_s, ""
        for attempt in range(self._limits.attempts):
            if attempt:
                time.sleep(pause)
                pause *= 2
            self._process, self._begun = self._begun or WorkerProcess(self._command), None
            self.started += 1
            try:
                answer = self._process.ask({"op": "health"}, self._limits.start_s + self._limits.health_s)
            except Unanswered as error:
                reason = str(error)
            except BaseException:
                self._retire()
                raise
            else:
                reason = self._accept(answer)
                if not reason:
                    return self._process
            self._retire()
            self._say(f"cuda:{self.index} does not pass its self test: {reason}")
        raise CardLost(
            f"cuda:{self.index} must pass its self test but did not in {self._limits.attempts} fresh processes "
            f"({reason}); all verdicts so far are in the journal: look at nvidia-smi, then run the same command again"
        )

    def _accept(self, answer: dict[str, Any]) -> str:
        """Why the answer to ``health`` is not good enough, or nothing."""
        if not answer["ok"]:
            return _last_line(answer["reason"])
        found = Health.from_record(answer["health"])
        if self._health is None:
            self._health = found
        if found.uuid != self._health.uuid:
            return f"it is another card now, {found.uuid} instead of {self._health.uuid}"
        if found.free_bytes < LEAST_FREE * self._health.free_bytes:
            free, before = found.free_bytes >> 20, self._health.free_bytes >> 20
            return f"{free} MiB of its memory are free, {before} MiB were at first"
        return ""

    def _retire(self) -> None:
        try:
            self.close()
        except StillAlive as error:
            raise CardLost(
                f"cuda:{self.index} must let go of a killed worker but does not ({error}); all verdicts so far are in "
                "the journal: reset the card or restart the machine, then run the same command again"
            ) from None

    def _lock(self) -> contextlib.AbstractContextManager[None]:
        return card_lock(self._uuid, say=self._say, folder=self._lock_folder)


def _from_outside(error: Unanswered) -> bool:
    return isinstance(error, Died) and -error.code in OUTSIDE


def _status_of(error: Unanswered) -> Status:
    """The verdict on the candidate that a worker was at when it was lost."""
    if isinstance(error, Hung):
        return Status.DEADLOCK if error.phase in LAUNCHING else Status.TIMED_OUT
    return Status.WORKER_LOST if _from_outside(error) else Status.FAILED


def _fault_of(answer: dict[str, Any]) -> Exception:
    if answer["status"] == BUG:
        return RuntimeError(f"the GPU worker failed:\n{answer['reason']}")
    return CandidateFault(Status(answer["status"]), answer["reason"])


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no reason given"
