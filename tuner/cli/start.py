"""Where the command line begins: importing it takes long enough for Ctrl-C to come before ``main``."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def start() -> int:
    """``main``; returns the exit code."""
    try:
        from tuner.cli.main import main

        return main()
    except KeyboardInterrupt:  # main itself catches its own
        print("error: interrupted", file=sys.stderr)
        return INTERRUPTED
