"""What a device's time went into from when it was ready to the end of a tune: work on candidates and the final, rounds
between leaders in the meantime, repeated checks in the meantime, waiting."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator

from tuner.trials.outcome import Trial

MOST_SPARE_CHECKS = 40  # of one leader; each is several launches on fresh operands


@dataclasses.dataclass(kw_only=True)
class Usage:
    """Seconds of the wall clock: ``busy_s`` judging candidates and in finals; while no candidate was there to be
    judged, ``rounds_s`` timing leaders against one another and ``spare_s`` checking them again; ``idle_s`` none of
    these, because of the compiler, the sampler or the disk.

    ``rounds``: how many of leaders, ``ruled_out``: leaders that these left out of the final. ``spare_checks`` counts by
    resolved config.
    """

    busy_s: float = 0.0
    rounds_s: float = 0.0
    spare_s: float = 0.0
    idle_s: float = 0.0
    rounds: int = 0
    ruled_out: int = 0
    spare_checks: dict[str, int] = dataclasses.field(default_factory=dict)

    def busy(self) -> contextlib.AbstractContextManager[None]:
        return self._timed("busy_s")

    def refining(self) -> contextlib.AbstractContextManager[None]:
        return self._timed("rounds_s")

    def spare(self, resolved: str) -> contextlib.AbstractContextManager[None]:
        self.spare_checks[resolved] = self.spare_checks.get(resolved, 0) + 1
        return self._timed("spare_s")

    @contextlib.contextmanager
    def _timed(self, field: str) -> Iterator[None]:
        """Add the seconds of a block to ``field``."""
        start = time.monotonic()
        try:
            yield
        finally:
            setattr(self, field, getattr(self, field) + time.monotonic() - start)

    @contextlib.contextmanager
    def idle_between(self, since: float | None = None) -> Iterator[None]:
        """A block in which the device waits whenever it does nothing else; ``since``: a time of ``time.monotonic()``
        from which on it has been waiting already."""
        start = time.monotonic() if since is None else since
        before = self._used_s
        try:
            yield
        finally:
            self.idle_s += time.monotonic() - start - (self._used_s - before)

    @property
    def _used_s(self) -> float:
        return self.busy_s + self.rounds_s + self.spare_s

    def least_checked(self, leaders: list[Trial]) -> Trial | None:
        """Which leader to check again, the better one of equals; None when all have had enough."""
        counts = [(self.spare_checks.get(trial.resolved, 0), index) for index, trial in enumerate(leaders)]
        count, index = min(counts, default=(MOST_SPARE_CHECKS, 0))
        return leaders[index] if count < MOST_SPARE_CHECKS else None

    def __str__(self) -> str:
        share = self.idle_s / ((self._used_s + self.idle_s) or 1.0)
        spare = ""
        if self.rounds:
            spare = (
                f"{self.rounds_s:.1f} s in {self.rounds} rounds between leaders meanwhile "
                f"({self.ruled_out} ruled out), "
            )
        if self.spare_checks:
            spare += (
                f"{self.spare_s:.1f} s checking {len(self.spare_checks)} leaders {sum(self.spare_checks.values())} "
                "times more meanwhile, "
            )
        return f"{self.busy_s:.1f} s at work, {spare}{self.idle_s:.1f} s waiting for candidates ({share:.1%})"
