"""Processes that this project starts. Each leads a group of its own: Ctrl-C is for the tuner alone, and a kill takes
whatever the process started with it. Below all folders."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def call_command(module: str, function: str, *arguments: Any) -> list[str]:
    """What calls ``function`` of ``module`` with ``arguments``, which print as they parse.

    Not ``-m``: the process must find this project wherever the parent found it. Not multiprocessing's spawn: that
    imports the parent's main module again, whatever it imports.
    """
    call = f"{function}({', '.join(map(repr, arguments))})"
    return [
        sys.executable,
        "-c",
        f"import sys; sys.path[:] = {sys.path!r}; from {module} import {function}; {call}",
    ]


def start(command: Sequence[str], **pipes: Any) -> subprocess.Popen[Any]:
    """``command`` as the leader of a group; ``pipes``: as ``Popen`` has them, without stdin if nothing is said."""
    return subprocess.Popen(command, **{"stdin": subprocess.DEVNULL, **pipes}, start_new_session=True)


def kill_group(process: subprocess.Popen[Any]) -> None:
    """End it and whatever it started, also when it has ended itself and left something."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def die_with(parent: int) -> None:
    """The kernel ends this process when the thread that started it ends, in whatever code it hangs. ``parent``: that
    thread's process."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call
        os._exit(1)
