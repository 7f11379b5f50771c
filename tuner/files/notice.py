"""One line on stderr about what was passed over: damage that costs a part and not the whole."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

Say = Callable[[str], None]
SHOWN = 20


def notice(line: str) -> None:
    print(f"warning: {' '.join(line.split())}", file=sys.stderr, flush=True)


def say_each(lines: Sequence[str], say: Say = notice) -> None:
    """Every line, or the first ``SHOWN`` and how many there are besides."""
    for line in lines[:SHOWN]:
        say(line)
    if len(lines) > SHOWN:
        say(f"and {len(lines) - SHOWN} more like these")
