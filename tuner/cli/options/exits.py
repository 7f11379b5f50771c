"""How a command ends that was understood: exit codes, and the error that is one line and exit code 1."""

from __future__ import annotations

INTERRUPTED = 130
BAD_INPUT = 2


class CommandError(Exception):
    """The command was understood but has nothing to show: one line, exit code 1."""
