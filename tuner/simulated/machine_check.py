"""Check candidates in the sm_100a machine: worker processes, and verdicts kept beside the kernel they are about.

The machine says whether a kernel is right: on a small problem under every schedule with race checking, and for a winner
once on the full one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kernel_space.build.cache import default_cache_dir
from kernel_space.core.plain_files import read_plain
from tuner.files.store import atomic_write, make_folder
from tuner.simulated.check_worker import CheckDied, CheckPool
from tuner.trials.answer import answered, then
from tuner.trials.outcome import Outcome, Status

if TYPE_CHECKING:
    from concurrent.futures import Future

    from kernel_space.build.build import CompiledKernel
    from kernel_space.check.result import CheckResult
    from kernel_space.core.config import KernelConfig
    from kernel_space.core.problem import Problem

CHECKED = "checked in the sm_100a machine"
CANDIDATE, FULL = "candidate", "full"
SEED = 0
# A misuse of barriers or descriptors has no status of its own; a run-away loop hangs a card as a deadlock does.
STATUS = {"PROTOCOL_ERROR": Status.FAILED, "BUDGET_EXCEEDED": Status.DEADLOCK}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """``kind``: ``candidate`` or ``full``."""

    kind: str
    compiled: CompiledKernel
    config: KernelConfig
    problem: Problem

    @property
    def path(self) -> Path:
        """Where the verdict is kept: with the kernel, so that both go together. Its name is all that decides it."""
        from kernel_space.check.version import check_version

        parts = [
            self.kind,
            self.compiled.cubin_sha256,
            check_version(self.problem.operator),
            *map(str, self._subject()),
        ]
        folder = self.compiled.directory
        if self.compiled.foreign:  # what lies there is no verdict of ours, nor is the hash that it states
            folder = default_cache_dir().parent / "verdicts"
            files = (self.compiled.ptx_path, self.compiled.object_path)
            parts += [hashlib.sha256(read_plain(path)).hexdigest() for path in files]
        return folder / f"check-{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:16]}.json"

    def _subject(self) -> tuple[object, ...]:
        from kernel_space.check.validate import ALL, FULL_LIMIT_S, exercises
        from kernel_space.core.arch import arch

        if self.kind == FULL:
            return (self.problem, FULL_LIMIT_S, SEED)
        return (*exercises(self.config, self.problem, arch(self.compiled.arch)), *ALL, SEED)

    def run(self) -> dict[str, Any]:
        """The verdict as JSON holds it; takes seconds."""
        from kernel_space.check.validate import check_candidate, check_full

        check = check_full if self.kind == FULL else check_candidate
        result = check(self.compiled, self.config, self.problem, seed=SEED)
        return {
            "kind": self.kind,
            "cubin_sha256": self.compiled.cubin_sha256,
            "config": str(self.config),
            "status": str(STATUS.get(result.status) or Status[result.status]),
            "text": describe(result, self) if result.ok else f"{result.status}: {result.reason}",
            "instructions": result.instructions,
            "seconds": round(result.seconds, 3),
            "findings": result.findings,
        }


def run_task(task: Any) -> Any:
    """What a worker does: a check, or whatever else is to be kept out of the tuner's process."""
    return task.run()


def describe(result: CheckResult, task: Task) -> str:
    """What was checked, for the table and the report."""
    from kernel_space.check.result import worst_errors

    worst = worst_errors(result.outputs)
    if task.kind == CANDIDATE:
        what = " and ".join(map(str, result.problems))
        schedules = len({run.schedule for run in result.runs})
        calls = max(run.calls for run in result.runs)
        row = f" and {calls} overlapping calls in a row" if calls > 1 else ""
        return (
            f"{CHECKED}: {task.problem.form()}={what} on {result.sms} SMs under {schedules} schedules{row} with race "
            f"checking, {worst}"
        )
    if result.problem == task.problem:
        return f"full problem {result.problem} once, {worst}"
    return f"the full problem takes too long, so {result.problem}, with edges cut as its are, once, {worst}"


class Tasks(Protocol):
    """What is asked of ``CheckPool``, wherever its processes are."""

    def submit(self, task: Any) -> Future[Any]: ...


class MachineChecker:
    """Answers from the verdicts on disk, else runs the check in one of at most ``jobs`` processes.

    A process that dies or hangs is a ``FAILED`` outcome, which is not kept on disk. ``pool`` also takes other tasks;
    another one may be given, whose processes are elsewhere.
    """

    def __init__(self, jobs: int | None = None, pool: Tasks | None = None) -> None:
        self.pool: Tasks = pool or CheckPool(jobs or os.cpu_count() or 1, f"{__name__}:run_task")
        self._running: dict[Path, Future[Outcome]] = {}
        self._lock = threading.Lock()

    def check(self, task: Task) -> Future[Outcome]:
        """OK with what was checked as its reason, or why not. Any thread may ask; who asks for what is running waits
        for that."""
        if (record := _read(task.path)) is not None:
            return answered(lambda: _outcome(record))
        with self._lock:
            future = self._running.get(task.path)
            if future is None:
                future = then(self.pool.submit(task), lambda done: _kept(task, done))
                self._running[task.path] = future
        future.add_done_callback(lambda _: self._running.pop(task.path, None))
        return future


def _kept(task: Task, done: Future[dict[str, Any]]) -> Outcome:
    """The outcome of a check that ran; on disk, too, if there is one."""
    try:
        record = done.result()
    except CheckDied as error:
        return Outcome(status=Status.FAILED, reason=str(error))
    make_folder(task.path.parent)
    atomic_write(task.path, json.dumps(record, indent=1) + "\n")
    return _outcome(record)


def _outcome(record: dict[str, Any]) -> Outcome:
    return Outcome(status=Status(record["status"]), reason=record["text"])


def _read(path: Path) -> dict[str, Any] | None:
    """A verdict on disk; None if there is none or it is damaged."""
    try:
        record = json.loads(path.read_text())
        Status(record["status"])
        return record if isinstance(record["text"], str) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
