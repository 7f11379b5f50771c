"""CompilePool: killable compile workers with a time limit per candidate.

Each worker has a pipe and a thread of its own here and shares no lock with others, so that one that hangs or dies,
whenever that is, is one recorded outcome and one new process. (pebble's pool ends with an idle worker that is
killed; concurrent.futures' with any.)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from concurrent.futures import Future
from multiprocessing.connection import Pipe
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kernel_space.build.build import cached_build, default_cache_dir
from kernel_space.build.dsl_env import clean_environment
from kernel_space.build.key import toolchain
from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.problem import ProblemClass
from tuner.compile.worker import READY, CompileResult, Refusal, Task, WorkerBug
from tuner.processes import call_command, kill_group
from tuner.processes import start as start_group
from tuner.trials.outcome import Status

__all__ = ["CompilePool", "CompileResult", "WorkerError"]

TASKS_PER_WORKER = 100  # a worker starts at 300 MB and grows by 2.4 MB with each compilation
_SCRATCH = "svdquant-autotuner-compile-pool-"
START_LIMIT_S = 120.0  # importing the DSL takes a second, or many on a machine with a cold disk


class WorkerError(RuntimeError):
    """A worker could not start, or failed in a way that is no verdict on a candidate."""


class CompilePool:
    """``jobs`` worker processes. Each candidate may take ``timeout_s`` seconds of a worker.

    ``cache_dir`` holds the artifacts, by default the user's cache. Use it as a context manager or ``close`` it:
    no process survives it, nor a parent that is killed. What would steer their compiler is taken out of the environment
    (``clean_environment``). Raises ``InputError`` for bad limits or a missing compiler.
    """

    def __init__(
        self,
        jobs: int,
        timeout_s: float,
        cache_dir: Path | None = None,
        *,
        tasks_per_worker: int = TASKS_PER_WORKER,
    ) -> None:
        if jobs < 1:
            raise InputError(f"jobs must be at least 1, got {jobs}")
        if timeout_s <= 0:
            raise InputError(f"the compile timeout must be positive, got {timeout_s} s")
        toolchain()
        clean_environment()  # the workers' own is not seen by anybody
        self.jobs = jobs
        self._timeout_s = timeout_s
        self._cache_dir = (cache_dir or default_cache_dir()).absolute()
        self._tasks_per_worker = tasks_per_worker
        _sweep_scratch()
        self._scratch = Path(tempfile.mkdtemp(prefix=f"{_SCRATCH}{os.getpid()}-"))
        self._tasks: queue.SimpleQueue[tuple[Future[CompileResult], Task] | Arch | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closing = False
        self._workers: set[_Worker] = set()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(jobs)]
        for thread in self._threads:
            thread.start()

    def start(self, arch: Arch) -> None:
        """Start the workers now instead of with their first candidates: importing the DSL takes seconds, in which a
        tuner has other things to do. Returns at once; a worker that cannot start tells its first candidate so."""
        with self._lock:
            if self._closing:
                raise RuntimeError("the compile pool is closed")
            for _ in range(self.jobs):
                self._tasks.put(arch)

    def submit(self, config: KernelConfig, problem_class: ProblemClass, arch: Arch) -> Future[CompileResult]:
        """Compiles a resolved ``config`` in a worker, or answers at once from the cache.

        The future's exception is a bug (``WorkerError``) or a refusing cache (``InputError``), never the candidate's
        fault.
        """
        future: Future[CompileResult] = Future()
        start = time.perf_counter()
        found = cached_build(config, problem_class, arch, cache_dir=self._cache_dir)
        if found is not None:
            seconds = time.perf_counter() - start
            future.set_result(CompileResult(status=Status.OK, compiled=found, seconds=seconds))
            return future
        task = Task(config=config, problem_class=problem_class, arch=arch, cache_dir=self._cache_dir)
        with self._lock:
            if self._closing:
                raise RuntimeError("the compile pool is closed")
            self._tasks.put((future, task))
        return future

    def close(self) -> None:
        """Kills the workers; what waits is cancelled, what runs fails with ``WorkerError``."""
        with self._lock:
            self._closing = True
            for worker in self._workers:
                worker.kill()
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._tasks.get_nowait()
                if isinstance(item, tuple):
                    item[0].cancel()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- one thread per worker --

    def _serve(self) -> None:
        worker: _Worker | None = None
        while (item := self._tasks.get()) is not None:
            if isinstance(item, Arch):
                with contextlib.suppress(WorkerError):
                    worker = worker or self._start_worker(item.name)
                continue
            future, task = item
            if not future.set_running_or_notify_cancel():
                continue
            # One that was killed while it was idle is not this candidate's doing.
            if worker is not None and not worker.alive:
                self._retire(worker)
                worker = None
            try:
                worker = worker or self._start_worker(task.arch.name)
                result = worker.compile(task, self._timeout_s)
            except BaseException as error:
                future.set_exception(error)
            else:
                self._finish(future, result)
            if worker is not None and (not worker.alive or worker.served >= self._tasks_per_worker):
                self._retire(worker)
                worker = None
        if worker is not None:
            self._retire(worker)

    def _finish(self, future: Future[CompileResult], result: CompileResult) -> None:
        if self._closing and result.status is not Status.OK:
            future.set_exception(WorkerError("the compile pool was closed"))
        else:
            future.set_result(result)

    def _start_worker(self, arch_name: str) -> _Worker:
        with self._lock:
            if self._closing:
                raise WorkerError("the compile pool was closed")
            worker = _Worker(arch_name, self._scratch)
            self._workers.add(worker)
        try:
            worker.wait_until_ready()
        except BaseException:
            self._retire(worker)
            raise
        return worker

    def _retire(self, worker: _Worker) -> None:
        with self._lock:
            self._workers.discard(worker)
        worker.kill()
        worker.release()


class _Worker:
    """A worker process as its thread sees it."""

    def __init__(self, arch_name: str, scratch: Path) -> None:
        self.served = 0
        self._log = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115 - closed in release
        fcntl.fcntl(self._log, fcntl.F_SETFL, os.O_APPEND)  # so that it can be cut between tasks
        self._pipe, end = Pipe()
        arguments = end.fileno(), os.getpid(), arch_name, str(scratch)
        self._process = start_group(
            call_command("tuner.compile.worker", "main", *arguments),
            pass_fds=[end.fileno()],
            stdout=subprocess.DEVNULL,
            stderr=self._log,
        )
        end.close()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait_until_ready(self) -> None:
        """Raises ``WorkerError`` if the process does not come up."""
        try:
            ready = self._pipe.poll(START_LIMIT_S) and self._pipe.recv() == READY
        except (EOFError, OSError):
            raise WorkerError(f"the compile worker cannot start: {self._death()}") from None
        if not ready:
            raise WorkerError(f"the compile worker did not start within {START_LIMIT_S:g} s")

    def compile(self, task: Task, timeout_s: float) -> CompileResult:
        """Raises ``WorkerError`` with the worker's traceback for a bug, ``InputError`` when the cache takes nothing."""
        self.served += 1
        os.ftruncate(self._log.fileno(), 0)
        start = time.perf_counter()
        try:
            self._pipe.send(task)
            answer: Any = self._pipe.recv() if self._pipe.poll(timeout_s) else None
        except (EOFError, OSError):
            return _failure(Status.COMPILE_CRASHED, self._death(), start)
        if answer is None:
            self.kill()
            self._process.wait()  # or the next candidate would find it not yet dead
            return _failure(Status.COMPILE_TIMEOUT, f"not compiled within {timeout_s:g} s", start)
        if isinstance(answer, Refusal):
            raise InputError(answer.line)
        if isinstance(answer, WorkerBug):
            raise WorkerError(f"compiling {task.config} failed:\n{answer.trace}")
        return answer

    def kill(self) -> None:
        """Ends the process and whatever it started. Safe from any thread."""
        if self.alive:
            kill_group(self._process)

    def release(self) -> None:
        self._process.wait()
        self._pipe.close()
        self._log.close()

    def _death(self) -> str:
        """How the process ended, with the line of its stderr that tells most."""
        self.kill()
        code = self._process.wait()
        size = os.fstat(self._log.fileno()).st_size
        lines = os.pread(self._log.fileno(), size, 0).decode(errors="replace").splitlines()
        told = [line.strip() for line in lines if line.strip()]
        words = next(
            (line for line in told if re.search("error|fatal|abort", line, re.I)), "".join(told[-1:])
        )
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return f"the compile worker {how}" + (f": {words}" if words else "")


def _sweep_scratch() -> None:
    """Removes what tuners that were killed left behind: their process is no more."""
    for path in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*-*"):
        if not Path("/proc", path.name.removeprefix(_SCRATCH).partition("-")[0]).exists():
            shutil.rmtree(path, ignore_errors=True)


def _failure(status: Status, reason: str, start: float) -> CompileResult:
    return CompileResult(status=status, reason=reason, seconds=time.perf_counter() - start)
