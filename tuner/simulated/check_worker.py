"""The process that runs checks in the sm_100a machine, one after another over a pipe, and its side in the tuner.

The machine is given addresses of real memory by the kernel it runs; should it ever follow a wrong one, this
process dies and not the tune.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import traceback
from concurrent.futures import Future
from multiprocessing.connection import Connection, Pipe
from typing import Any

from kernel_space.core.errors import InputError
from tuner.processes import call_command, start

LIMIT_S = 600.0  # a candidate takes seconds, a full problem at most a minute or two on a busy machine


class CheckDied(Exception):
    """The process ended or hung during a check: no verdict, one line."""


class CheckHung(CheckDied):
    """It did not answer within its limit."""


class CheckPool:
    """At most ``jobs`` processes, started when there is work. They end with this process, or when it is closed.

    A task may state its own ``limit_s`` in seconds.
    """

    def __init__(self, jobs: int, function: str) -> None:
        """``function``: ``module:name`` of what the workers call with each task."""
        self._jobs, self._function = jobs, function
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Any]] = queue.SimpleQueue()
        self._threads = 0
        self._unfinished = 0
        self._lock = threading.Lock()

    def submit(self, task: Any) -> Future[Any]:
        """The future raises ``CheckDied``, ``InputError``, or ``RuntimeError`` with the traceback of a bug."""
        future: Future[Any] = Future()
        self._tasks.put((future, task))
        with self._lock:
            self._unfinished += 1
            starts = self._threads < min(self._jobs, self._unfinished)
            self._threads += starts
        if starts:  # daemons: an interrupted tune does not wait for checks
            threading.Thread(target=self._serve, daemon=True).start()
        return future

    def _serve(self) -> None:
        worker: _Worker | None = None
        while True:
            future, task = self._tasks.get()
            try:
                worker = worker or _Worker(self._function)
                future.set_result(worker.ask(task))
            except BaseException as error:
                if worker is not None and isinstance(error, CheckDied):
                    worker.end()
                    worker = None
                future.set_exception(error)
            with self._lock:
                self._unfinished -= 1


class _Worker:
    def __init__(self, function: str) -> None:
        self._pipe, end = Pipe()
        self._process = start(
            call_command(__name__, "main", end.fileno(), os.getpid(), function),
            pass_fds=[end.fileno()],
            stdout=subprocess.DEVNULL,
        )
        end.close()

    def ask(self, task: Any) -> Any:
        limit_s = getattr(task, "limit_s", LIMIT_S)
        try:
            self._pipe.send(task)
            if not self._pipe.poll(limit_s):
                raise CheckHung(f"the machine did not end within {limit_s:g} s")
            kind, answer = self._pipe.recv()
        except (EOFError, OSError):
            raise CheckDied(f"the process that ran the check died ({self._death()})") from None
        if kind == "input":
            raise InputError(answer)
        if kind == "bug":
            raise RuntimeError(f"a task of the machine failed:\n{answer}")
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._pipe.close()

    def _death(self) -> str:
        code = self._process.wait()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def main(descriptor: int, parent: int, function: str) -> None:
    """Answers each task that comes through the pipe ``descriptor`` with ("answer", value) or ("bug", traceback)."""
    import importlib

    from tuner.processes import die_with

    die_with(parent)
    import torch

    torch.set_num_threads(1)
    module, _, name = function.partition(":")
    call = getattr(importlib.import_module(module), name)
    connection = Connection(descriptor)
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        try:
            answer = ("answer", call(task))
        except InputError as error:
            answer = ("input", str(error))
        except Exception:
            answer = ("bug", traceback.format_exc())
        connection.send(answer)
