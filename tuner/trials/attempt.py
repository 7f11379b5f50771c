"""Who is at work on a candidate, so that a later process can tell whether that ended, and how.

A kernel can take down more than its worker: the tuner with it, or the machine. Before a candidate runs on a card its
journal says so; when no verdict follows and the process is gone, the candidate is a suspect.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

TRIES = 2  # tuners that may end on one candidate; one may have been killed for reasons of its own


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
    """A process of this machine: ``boot`` is the kernel's boot id, ``started`` its start in clock ticks since then.

    Both are empty where ``/proc`` does not tell.
    """

    boot: str
    pid: int
    started: str

    @classmethod
    def here(cls) -> Self:
        return cls(boot=_boot_id(), pid=os.getpid(), started=_started(os.getpid()))

    @property
    def alive(self) -> bool:
        return self.boot == _boot_id() and bool(self.started) and _started(self.pid) == self.started

    @property
    def rebooted(self) -> bool:
        """The machine was started again since."""
        return bool(self.boot and _boot_id()) and self.boot != _boot_id()

    def record(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def blame(attempts: Sequence[Attempt]) -> str:
    """Why a candidate with these attempts and no verdict must not run again; empty if it may."""
    lost = [attempt for attempt in attempts if not attempt.alive]
    if any(attempt.rebooted for attempt in lost):
        return "the machine went down while this candidate ran on the card"
    if len(lost) >= TRIES:
        return f"{len(lost)} tuners ended while this candidate ran on the card"
    return ""


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _started(pid: int) -> str:
    """Field 22 of ``/proc/<pid>/stat`` (proc(5)), which no later process with this number shares; empty when gone."""
    with contextlib.suppress(OSError):
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
        return after_name.split()[19]
    return ""
