"""How much a kernel's results were checked before it was written down, read from what the check said of it.

A device first checks a candidate (``Device.check``), then the winner once more (``check_full``). A tune that
is stopped by time or Ctrl-C leaves out what had not begun; its row says so, and is of less worth.
"""

from __future__ import annotations

import enum
from typing import Any, Final

from tuner.trials.outcome import Status

THEN: Final = "; then "  # between the check of a candidate and that of a winner
NEVER_CHECKED: Final = "not checked: the tune ended before"
_NOT = "not "  # how NEVER_CHECKED and ``device.NOT_VALIDATED`` begin
_REFUTED = tuple(f"{status}: " for status in Status if status is not Status.OK)


class Check(enum.IntEnum):
    """The more, the better."""

    NONE = 0
    CANDIDATE = 1
    WINNER = 2

    def __str__(self) -> str:
        return _WORDS[self]


_WORDS = {
    Check.NONE: "not checked",
    Check.CANDIDATE: "checked as a candidate only",
    Check.WINNER: "checked as the winner",
}


def check_of(said: Any) -> Check:
    """``said``: ``Trial.validation``, or ``checked`` of a row's evidence, whatever a file has there.

    What is no text, empty, begins with ``not``, or holds a verdict other than OK is no check.
    """
    if not isinstance(said, str) or not said.strip() or said.startswith(_NOT):
        return Check.NONE
    parts = said.split(THEN)
    if any(part.startswith(_REFUTED) for part in parts):
        return Check.NONE
    return Check.WINNER if len(parts) > 1 else Check.CANDIDATE
