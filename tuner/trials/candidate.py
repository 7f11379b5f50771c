"""What a search proposes, what a loop needs of a search, and how candidates of several searches are numbered. Imports
no sampler."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Protocol

from kernel_space.core.config import KernelConfig
from kernel_space.core.rules import Legal, Rejection
from tuner.trials.outcome import Origin, Trial


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


class Numbers:
    """Numbers by which people name trials: two tuners that work side by side count each from 0.

    Gives each candidate one number, in the order in which candidates come: its own unless another one has it, else
    the next that nobody has. So the same journal gives the same numbers to whoever reads it, now and later.
    """

    def __init__(self) -> None:
        self._number_of: dict[str, int] = {}
        self._taken: set[int] = set()

    def given(self, trial: Trial) -> Trial:
        """``trial`` under its candidate's number; a point that is no candidate (no ``resolved``) stays as it is."""
        if not trial.resolved:
            return trial
        if trial.resolved not in self._number_of:
            number = trial.number if trial.number not in self._taken else 1 + max(self._taken)
            self._number_of[trial.resolved] = number
            self._taken.add(number)
        number = self._number_of[trial.resolved]
        return trial if number == trial.number else dataclasses.replace(trial, number=number)


def distinct(trials: Iterable[Trial]) -> list[Trial]:
    numbers = Numbers()
    return [numbers.given(trial) for trial in trials]
