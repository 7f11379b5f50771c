"""Standard streams that whoever started the command has closed."""

from __future__ import annotations

import os
import sys

_STREAMS = {0: ("stdin", "r"), 1: ("stdout", "w"), 2: ("stderr", "w")}


def open_streams() -> None:
    """Those that are closed become the null device, for child processes too.

    Otherwise the next file that is opened gets the number of the closed one, and what anybody writes to that stream
    lands in the file. Python leaves None in ``sys`` besides.
    """
    for number, (name, mode) in _STREAMS.items():
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
