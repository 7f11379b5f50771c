"""How two trials compare: one figure for a pair, wherever it stands on a page."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from tuner.report.data.state import searched, state_of
from tuner.report.data.sweep import Sweep, default_trial, microseconds, ranked
from tuner.report.marks.svg import number
from tuner.trials.final_order import FINAL, PLACE
from tuner.trials.outcome import Trial


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """``ratio``: time over the winner's. ``paired``: within the same rounds of a final, with the interval of the ratio,
    ``p`` and the number of rounds; else of times of one state."""

    ratio: float
    paired: bool
    low: float | None = None
    high: float | None = None
    p: float | None = None
    rounds: int | None = None

    @property
    def interval(self) -> str:
        return "" if self.low is None or self.high is None else f"{self.low:.4f} to {self.high:.4f}"


def compared(trial: Trial, winner: Trial) -> Pair | None:
    """By the paired test of their final, if it was made, else by what their search was told; None where the two were
    never timed alike."""
    if _met(trial, winner) and (pair := _tested(trial)):
        return pair
    one, other = searched(trial), searched(winner)
    if one.us is None or not other.us or state_of(one) != state_of(other):
        return None
    return Pair(ratio=one.us / other.us, paired=False)


def _met(trial: Trial, winner: Trial) -> bool:
    """In one final, which ``winner`` won: a row may be of another one."""
    final = winner.evidence.get(FINAL)
    return bool(final) and trial.evidence.get(FINAL) == final and winner.evidence.get(PLACE) == 1


def _tested(trial: Trial) -> Pair | None:
    """A contender that left before the last round has no test."""
    evidence = trial.evidence
    names = ("ratio", "ratio_low", "ratio_high", "p_value", "rounds")
    figures: list[Any] = [evidence.get(name) for name in names]
    if evidence.get("versus") != "winner" or not all(isinstance(one, int | float) for one in figures):
        return None
    ratio, low, high, p, rounds = figures
    return Pair(ratio=ratio, paired=True, low=low, high=high, p=p, rounds=rounds)


def order(sweep: Sweep, winner: Trial, runner_up: Trial | None) -> list[Trial]:
    """Trials with a time, best first: winner, runner-up, the other contenders of the winner's final by their place,
    then the others by what the search was told; each config once."""
    final = winner.evidence.get(FINAL)
    placed = [one for one in ranked(sweep.trials) if final and one.evidence.get(FINAL) == final]
    placed.sort(key=lambda one: one.evidence.get(PLACE, len(placed)))
    own = state_of(winner)
    others = [one for one in map(searched, ranked(sweep.trials)) if one.us is not None]
    others.sort(key=lambda one: (state_of(one) != own, one.us))
    by_config: dict[str, Trial] = {}
    for one in [winner, *([runner_up] if runner_up else []), *placed, *others]:
        by_config.setdefault(one.resolved, one)
    return list(by_config.values())


def default_speedup(trials: Iterable[Trial], winner: Trial) -> float | None:
    """How many times as fast as the default rule's candidate; None where the two were not timed alike."""
    default = default_trial(trials)
    pair = compared(default, winner) if default else None
    return pair.ratio if pair else None


def behind(trial: Trial, winner: Trial) -> str:
    """Its time, and how far it is behind, where they were timed alike; of a final the sentence on the order says it."""
    pair = compared(trial, winner)
    if pair is None or pair.paired:
        return ""
    return f", {number(microseconds(searched(trial)))} µs {trial.kind} ({pair.ratio - 1:+z.1%})"
