"""Several tuners on one folder of results, say one per card of a host: each problem is one tuner's at a time.

A final compares candidates on one card. Two tuners that held finals of one problem at once would do the work twice and
mix two verdicts in its journal. Who finds a problem taken goes on with the next and comes back: so the same command on
every card shares the problems out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable

from kernel_space.core.plain_files import AnyPath, below
from kernel_space.core.problem import Problem
from tuner.card.locks import open_lock, take
from tuner.files.store import make_folder
from tuner.stages.journal import STUDY_FOLDER

POLL_S = 0.1


def in_turn(
    problems: Iterable[Problem],
    out: AnyPath,
    device: str,
    *,
    say: Callable[[str], None] = lambda line: None,
    deadline: float | None = None,
) -> Generator[Problem, None, None]:
    """Each of ``problems`` once, in order as far as nobody else is at them; the caller's until it asks for the next.

    Waits for those that are left, until ``deadline`` (``time.monotonic()``) if there is one. A process that ends lets
    go of its problem. Raises ``InputError`` and ``OSError`` when ``out`` cannot hold the locks.
    """
    folder = make_folder(below(out, STUDY_FOLDER, device))
    waiting, said = list(problems), False
    while waiting:
        for problem in list(waiting):
            fd = open_lock(make_folder(below(folder, problem.operator)) / f"{problem.slug}.turn.lock")
            try:
                if take(fd):
                    waiting.remove(problem)
                    yield problem
                    break
            finally:
                os.close(fd)
        else:
            if not said:
                said = True
                say(f"other tuners are at {'; '.join(map(str, waiting))}: waiting for them")
            if deadline is not None and time.monotonic() >= deadline:
                return
            time.sleep(POLL_S)
