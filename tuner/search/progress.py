"""What the user sees while a tune runs: bars on a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from tuner.search.bars import Bars
    from tuner.trials.outcome import Trial

TERMINAL_PERIOD_S = 0.1
PLAIN_PERIOD_S = 10.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """Where a tune stands. Trials count distinct legal candidates; ``known`` of ``done`` came from the journal;
    ``filtered`` proposals were not worth a trial. ``workers``: what each busy compiler is at."""

    done: int = 0
    total: int = 0
    known: int = 0
    failed: int = 0
    filtered: int = 0
    compiling: int = 0
    best_us: float | None = None
    best_config: str = ""
    kind: str = ""
    workers: tuple[str, ...] = ()

    def line(self, elapsed_s: float) -> str:
        parts = [f"{self.done}/{self.total} trials"]
        if self.known:
            parts.append(f"{self.known} from the journal")
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.filtered:
            parts.append(f"{self.filtered} filtered")
        parts.append(f"{self.compiling} compiling")
        if self.best_us is not None:
            parts.append(f"best {self.best_us:.2f} us {self.kind}")
        parts.append(self._time(elapsed_s))
        return ", ".join(parts)

    def _time(self, elapsed_s: float) -> str:
        remaining = self.remaining_s(elapsed_s)
        if remaining is not None:
            return f"ETA {duration(remaining)}"
        return f"{duration(elapsed_s)} {'in all' if 0 < self.total <= self.done else 'so far'}"

    def remaining_s(self, elapsed_s: float) -> float | None:
        """At the rate of this run's own trials; None before the first of them. The journal's cost no time."""
        fresh = self.done - self.known
        if fresh <= 0 or self.total <= self.done:
            return None
        return elapsed_s / fresh * (self.total - self.done)


class Progress:
    """Shows states on ``stream`` (stderr unless told otherwise), never on stdout, never too often."""

    def __init__(
        self,
        label: str = "",
        *,
        stream: TextIO | None = None,
        terminal: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._terminal = self._stream.isatty() if terminal is None else terminal
        self._label = f"{label}: " if label else ""
        self._clock = clock
        self._start = clock()
        self._period = TERMINAL_PERIOD_S if self._terminal else PLAIN_PERIOD_S
        self._next = self._start if self._terminal else self._start + self._period
        self._stage = ""
        self._bars: Bars | None = None

    def stage(self, name: str) -> None:
        """What is done from now on: told at once, so that a long one is not silent."""
        self._stage = name
        if self._terminal:
            self._next = self._clock()
            if self._bars is None:
                self._show(State())
        elif not _quiet:
            self._write(f"{self._label}{name}")

    def trial(self, trial: Trial) -> None:
        """What came of a candidate. People are told in states."""

    def update(self, state: State) -> None:
        """Show ``state`` unless another one was shown a moment ago."""
        if self._clock() >= self._next:
            self._show(state)

    def finish(self, state: State) -> None:
        """Show the last state in any case and leave it standing."""
        self._show(dataclasses.replace(state, workers=()))
        if self._bars is not None:
            self._bars.close()
            self._bars = None
        self._stream.flush()

    def say(self, text: str) -> None:
        """One line that stays, such as a warning; what is redrawn moves below it."""
        if self._bars is not None:
            self._bars.say(f"{self._label}{text}")
        else:
            self._write(f"{self._label}{text}")

    def _show(self, state: State) -> None:
        if _quiet:
            return
        now = self._clock()
        self._next = now + self._period
        line = state.line(now - self._start)
        if not self._terminal:
            self._write(self._label + line)
            return
        if self._bars is None:
            from tuner.search.bars import Bars

            self._bars = Bars(self._stream)
        stage = f"{self._stage} " if self._stage else ""
        self._bars.show(f"{self._label}{stage}", line, state.done, state.total, state.workers)

    def _write(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


_quiet = False


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No states are shown meanwhile; what ``say`` is told still is."""
    global _quiet
    before, _quiet = _quiet, True
    try:
        yield
    finally:
        _quiet = before


class Silent(Progress):
    """For callers that want no lines."""

    def stage(self, name: str) -> None:
        pass

    def _show(self, state: State) -> None:
        pass

    def say(self, text: str) -> None:
        pass


def duration(seconds: float) -> str:
    """``42 s``, ``3 min 05 s``, ``2 h 07 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
