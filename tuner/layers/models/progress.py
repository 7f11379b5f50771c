"""A bar on stderr: how many of how many, which one, and how long it will still take."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

WIDTH = 24  # of the bar, in characters
LINES = 10  # that a file gets in all, where no terminal can overwrite one


class Bar:
    """``total`` steps. On a terminal one line is overwritten; elsewhere about ``LINES`` lines are written."""

    def __init__(
        self, total: int, *, to: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total, self.done = total, 0
        self._to = sys.stderr if to is None else to
        self._clock, self._start = clock, clock()
        self._every = 1 if self._to.isatty() else max(1, -(-total // LINES))

    def step(self, what: str) -> None:
        """One more is done: ``what``."""
        self.done += 1
        if self.done % self._every and self.done != self.total:
            return
        filled = WIDTH * self.done // self.total
        seconds = (self._clock() - self._start) / self.done * (self.total - self.done)
        line = f"[{'#' * filled:<{WIDTH}}] {self.done}/{self.total} {seconds:.0f} s left  {what}"
        last = self.done == self.total
        end = "\n" if last or not self._to.isatty() else ""
        start = "\r\x1b[K" if self._to.isatty() else ""
        self._to.write(f"{start}{line}{end}")
        self._to.flush()
