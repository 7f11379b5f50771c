"""Who wins a final: a paired test over rounds, ties to the default, then to the smaller kernel. Pure arithmetic."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from tuner.card.samples.statistics import Paired, compare, holm

LEVEL = 0.05  # of the whole family of comparisons with the fastest
# Differences below this are noise whatever their p-value: the same object loaded twice differs by as much from process
# to process, because its operands lie elsewhere (docs/inside_a_tune.md).
RESOLUTION = 0.003

Size = tuple[int, str]  # bytes of shared memory, printed config: what a tie prefers less of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """``order``: names, the winner first, the others by their median. ``against[name]``: ``name`` against the winner.

    ``tied``: those that could not be told from the fastest, which is among them. ``why``: one line.
    """

    order: tuple[str, ...]
    against: Mapping[str, Paired]
    tied: tuple[str, ...]
    why: str

    @property
    def winner(self) -> str:
        return self.order[0]


def decide(times: Mapping[str, Sequence[float]], default: str | None, sizes: Mapping[str, Size]) -> Verdict:
    """``times``: microseconds per round of each finalist, of the same rounds. ``default``: its name if it takes part.

    Whoever is not slower than the fastest by a test at ``LEVEL`` (Wilcoxon, Holm) and by more than ``RESOLUTION`` is
    tied with it. The default wins a tie; without it the smallest of those that beat the default by the same test.
    So the winner is never slower than the default by this measurement.
    """
    by_time = sorted(times, key=lambda name: (statistics.median(times[name]), sizes[name]))
    fastest = by_time[0]
    tied = (fastest, *_level_with(fastest, times))
    if default in tied:
        winner = default
    else:
        winner = min((name for name in tied if _beats(name, default, times)), key=lambda name: sizes[name])
    return Verdict(
        order=(winner, *(name for name in by_time if name != winner)),
        against={name: compare(times[winner], times[name]) for name in by_time if name != winner},
        tied=tied,
        why=_why(winner, fastest, default, len(tied), compare(times[fastest], times[winner])),
    )


def undecided(times: Mapping[str, Sequence[float]]) -> bool:
    """Could more rounds still separate someone from the fastest?"""
    fastest = min(times, key=lambda name: statistics.median(times[name]))
    return any(
        compare(times[fastest], times[name]).high > 1 + RESOLUTION for name in _level_with(fastest, times)
    )


def _level_with(fastest: str, times: Mapping[str, Sequence[float]]) -> list[str]:
    """Finalists that cannot be told from ``fastest``."""
    paired = {name: compare(times[fastest], one) for name, one in times.items() if name != fastest}
    adjusted = holm({name: one.p_value for name, one in paired.items()})
    return [name for name, one in paired.items() if adjusted[name] >= LEVEL or one.ratio <= 1 + RESOLUTION]


def _beats(name: str, default: str | None, times: Mapping[str, Sequence[float]]) -> bool:
    if default is None:
        return True
    found = compare(times[name], times[default])
    return found.ratio > 1 + RESOLUTION and found.p_value < LEVEL


def _why(winner: str, fastest: str, default: str | None, tied: int, gap: Paired) -> str:
    if winner == fastest and tied == 1:
        return "faster than every other finalist"
    if winner == fastest and winner == default:
        return f"the default, and the fastest of {tied} that cannot be told apart"
    if winner == fastest:
        return f"the fastest and smallest of {tied} that cannot be told apart"
    what = "the default" if winner == default else "the smallest"
    return f"{what} of {tied} that cannot be told apart, {gap.ratio - 1:.2%} behind the fastest (p {gap.p_value:.2g})"
