"""What a search proposes, and what a loop needs of a search. Imports no sampler."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Protocol

from kernel_space.core.config import KernelConfig
from kernel_space.core.rules import Legal, Rejection
from tuner.trials.outcome import Origin


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A legal point nobody asked before in this search. ``number`` counts from 0; ``seconds``: finding it took."""

    number: int
    config: KernelConfig  # as asked
    legal: Legal
    origin: Origin
    seed: int = 0
    seconds: float = 0.0

    @property
    def resolved(self) -> str:
        """The key of journal, cache and table."""
        return str(self.legal.config)


class Asks(Protocol):
    """A source of candidates: ``search.Search``, or a list that was compiled beforehand (``gpu.manifest``)."""

    @property
    def planned(self) -> int: ...
    @property
    def rejected(self) -> Mapping[KernelConfig, Rejection]: ...

    def ask(self) -> Candidate | None:
        """The next candidate; None when there is none, or none before a value is told."""
        ...

    def tell(self, number: int, us: float | None) -> None:
        """The time of candidate ``number`` in microseconds, None when it failed."""
        ...


class Listed:
    """Candidates that were chosen beforehand, as ``Asks``: each once, in their order, whatever the times are."""

    def __init__(
        self, candidates: Iterable[Candidate], rejected: Mapping[KernelConfig, Rejection] | None = None
    ) -> None:
        self._waiting = list(candidates)
        self.rejected: dict[KernelConfig, Rejection] = dict(rejected or {})
        self.planned = len(self._waiting)
        self._next = 0

    def ask(self) -> Candidate | None:
        if self._next == self.planned:
            return None
        self._next += 1
        return self._waiting[self._next - 1]

    def tell(self, number: int, us: float | None) -> None:
        """What was chosen beforehand does not depend on times."""
