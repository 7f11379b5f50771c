"""What both sides of a worker's pipe know; the requests themselves are described in ``worker/main.py``."""

from __future__ import annotations

BUG = "bug"  # ``status`` of an answer that is no verdict: ``reason`` is a traceback
LAUNCHING = frozenset({"launch", "time"})  # phases in which a kernel of the candidate runs


class Refused(Exception):
    """A request that ends without a result: ``status``, one line, and whether the process is still of use."""

    def __init__(self, status: str, reason: str, *, fatal: bool) -> None:
        super().__init__(reason)
        self.status, self.fatal = status, fatal
