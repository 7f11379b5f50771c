"""One worker process as its parent sees it: asked over a pipe with a time limit, and killed whatever it is at."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from tuner.processes import call_command, kill_group, start

LAST_WORDS = 300  # characters of stderr that go into a reason
KILL_LIMIT_S = 30.0  # the driver may need seconds to take a running kernel off the card


class Unanswered(Exception):
    """The worker did not answer. ``phase`` is what it was at last; ``str()`` is one line."""

    def __init__(self, reason: str, phase: str) -> None:
        super().__init__(reason)
        self.phase = phase


class Hung(Unanswered):
    """No answer within the limit; the process still runs."""


class Died(Unanswered):
    """The process ended. ``code`` is its exit code, negative for a signal."""

    def __init__(self, reason: str, phase: str, code: int) -> None:
        super().__init__(reason, phase)
        self.code = code


class StillAlive(Exception):
    """A killed process that does not end: the driver holds it."""


def worker_command(card: int, *options: str, module: str = "tuner.card.worker.main") -> list[str]:
    """Starts ``module``, the worker or ``tuner.card.peers``, on ``cuda:<card>``, with more ``options`` of its own."""
    return [*call_command(module, "main"), "--card", str(card), "--parent", str(os.getpid()), *options]


class WorkerProcess:
    """Starts ``command``, which speaks the protocol of ``worker/main.py``."""

    def __init__(self, command: Sequence[str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in end
        self._process = start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log)
        self._unread = b""
        self._phase = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """The answer. Raises ``Hung`` and ``Died``."""
        self._phase = "start"
        line = json.dumps(request, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        deadline = time.monotonic() + limit_s
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except OSError:  # it has ended; its last answer may say why
            pass
        while True:
            answer = self._next(deadline, limit_s)
            if "phase" not in answer:
                return answer
            self._phase = str(answer["phase"])

    def end(self) -> None:
        """Kill it and all it started. Raises ``StillAlive``."""
        kill_group(self._process)
        try:
            self._process.wait(KILL_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise StillAlive(
                f"worker {self._process.pid} was killed but does not end: the driver holds it"
            ) from None
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            assert pipe is not None, "the process was started with pipes"
            with contextlib.suppress(OSError):  # what could not be written to the dead
                pipe.close()

    def _next(self, deadline: float, limit_s: float) -> dict[str, Any]:
        while b"\n" not in self._unread:
            assert self._process.stdout is not None
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise Hung(f"no answer within {limit_s:g} s (at {self._phase})", self._phase)
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                raise self._death()
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise Died(f"the worker wrote what is no answer: {line[:80]!r}", self._phase, 0)
        return answer

    def _death(self) -> Died:
        try:
            code = self._process.wait(KILL_LIMIT_S)
        except subprocess.TimeoutExpired:  # it closed its pipe, which no worker does
            code = 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return Died(f"the worker died ({how}) at {self._phase}{self._last_words()}", self._phase, code)

    def _last_words(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 4096))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1][-LAST_WORDS:]}" if lines else ""
