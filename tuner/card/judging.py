"""What a device asks of the worker of a card, wherever that is: ``CardWorker`` on this machine, or one on another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tuner.card.samples.samples import Samples
    from tuner.card.worker.bench import Fidelity, FinalsOptions
    from tuner.card.worker.candidate import Case, Loadable
    from tuner.card.worker.check import CaseReport
    from tuner.card.worker.self_test import Health


class Judging(Protocol):
    """All of it raises ``CandidateFault`` for a candidate's fault, and ``CardLost``."""

    @property
    def uuid(self) -> str:
        """Of the card."""
        ...

    def begin(self) -> bool:
        """Get ready, if that takes seconds; returns at once, True if it is."""
        ...

    @property
    def health(self) -> Health: ...

    def check(
        self, candidate: Loadable, cases: Sequence[Case], *, repeats: int, seed: int
    ) -> list[CaseReport]: ...

    def time(self, candidate: Loadable, case: Case, fidelity: Fidelity) -> Samples: ...

    def finals(self, entries: Sequence[tuple[Loadable, Case]], options: FinalsOptions) -> list[Samples]: ...

    def close(self) -> None: ...
