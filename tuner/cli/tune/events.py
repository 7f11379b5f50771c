"""``--json-lines``: what a tune does, as events on stdout, one JSON object per line, for programs that watch it.

``stage``     ``name``: what begins
``progress``  where it stands: trials done, in all, failed, being compiled, the best time; at most once a second
``trial``     a candidate's status and time, as the journal has it; later ones of a config replace earlier ones
``note``      ``text`` that a person would read on stderr
``result``    at the end of a problem, what ``--json`` has of it

Every event has ``event``, ``problem`` (empty: of the whole command) and ``date``.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import Any

from kernel_space.core.problem import Problem
from tuner.search.progress import Progress, State
from tuner.search.trial_of import utc_now
from tuner.trials.outcome import Trial

PERIOD_S = 1.0


class Events(Progress):
    """Of one problem, or of the whole command."""

    def __init__(self, problem: Problem | None = None) -> None:
        super().__init__(terminal=False)
        self._problem = "" if problem is None else str(problem)
        self._due = time.monotonic()

    def stage(self, name: str) -> None:
        self.write("stage", name=name)

    def trial(self, trial: Trial) -> None:
        kind = trial.kind and str(trial.kind)
        about = {"number": trial.number, "config": trial.resolved, "status": str(trial.status)}
        times = {"kind": kind, "us": trial.us, "low_us": trial.low_us, "high_us": trial.high_us}
        self.write("trial", **about, reason=trial.reason or None, **times)

    def update(self, state: State) -> None:
        if time.monotonic() >= self._due:
            self.finish(state)

    def finish(self, state: State) -> None:
        self._due = time.monotonic() + PERIOD_S
        self.write("progress", **dataclasses.asdict(state))

    def say(self, text: str) -> None:
        self.write("note", text=text)

    def write(self, event: str, **fields: Any) -> None:
        record = {"event": event, "problem": self._problem, "date": utc_now(), **fields}
        sys.stdout.write(json.dumps(record, allow_nan=False) + "\n")
        sys.stdout.flush()
