"""The error that a user can act on."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input: one line that says what must hold, what came, and what to do.

    The command line prints it as it is and exits with code 2; it never becomes a traceback.
    """
