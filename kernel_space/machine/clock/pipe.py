"""The tensor pipe of one CTA or pair: in order, with an account of what it did and what it waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numpy import maximum

if TYPE_CHECKING:
    from kernel_space.machine.clock.chip import TimedCta, TimedWarp
    from kernel_space.machine.clock.clock import Times

ISSUE = "issue"


class TimedPipe:
    """``free``: end of the last operation; ``end``: under the nominal set.

    ``busy`` and ``idle``: cycles of the nominal set by kind and by cause.
    ``began`` is the nominal start of the first operation; began + busy + idle = free, always.
    """

    def __init__(self, cta: TimedCta) -> None:
        self.cta = cta
        self.free: Times = cta.cluster.machine.zero
        self.end = 0.0
        self.kind = ""
        self.began = -1.0
        self.busy: dict[str, float] = {}
        self.idle: dict[str, float] = {}

    def occupy(self, w: TimedWarp, cycles: Times, what: str) -> None:
        """Run one operation that ``w`` issues now."""
        start = maximum(self.free, w.t)
        begin = start.item(0)
        if self.began < 0:
            self.began = begin
        else:
            self._gap(begin - self.end, w)
        w.blame = {}
        self.busy[what] = self.busy.get(what, 0.0) + cycles.item(0)
        self.free = start + cycles
        self.end = self.free.item(0)
        record = w.machine.record
        if record is not None:
            record.append((f"CTA {self.cta.rank} tensor", what, begin, self.end))

    def _gap(self, gap: float, w: TimedWarp) -> None:
        """Blame the waits of the issuing warp since the last operation, the latest first, then its instructions."""
        for cause in reversed(w.blame):
            share = min(gap, w.blame[cause])
            self.idle[cause] = self.idle.get(cause, 0.0) + share
            gap -= share
        self.idle[ISSUE] = self.idle.get(ISSUE, 0.0) + gap
