"""Rounds between leaders while a card would wait for compilers: who is surely slower need not be in the final.

This is successive halving without its fences: whoever leads is timed against the fastest of those there are, in rounds
as the final's, and is ruled out as soon as a paired test says that it is slower; the others get more rounds.

What is compared and what is not. A pair is two times of one round, milliseconds apart, so that a drift of clock or
temperature meets both; pairs of several visits to the card are put together, times of different rounds never are.
The test is asked again after every visit, which makes its level (``LEVEL``, each time) less strict over all visits:
what it decides is who is left out. The final times those who are left in rounds of its own and decides by these alone,
so that nothing that was selected on is used again as if it were new.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from kernel_space.core.problem import Problem
from tuner.card.samples.samples import Samples
from tuner.card.samples.statistics import Paired, compare
from tuner.finals.decision import RESOLUTION
from tuner.finals.finals import Contender, Interleaves, Rounds
from tuner.trials.final_order import RULED_OUT_BY
from tuner.trials.outcome import Trial

GROUP = 6  # leaders per visit to the card: about 0.2 s, which a candidate that is compiled meanwhile waits at most
ROUNDS = 8  # per visit: the fewest in which an exact test of pairs can reach LEVEL (2 / 2**8 = 0.008)
LEVEL = 0.01
MOST_ROUNDS = 48  # with the fastest: who is not ruled out by then is for the final
WARM_UP_MS = 20.0  # graphs, not the clock: both of a pair meet that alike


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlyRounds:
    """``lost``: leaders that were ruled out by this visit, which their evidence says; ``failed``: those that failed."""

    lost: tuple[Trial, ...]
    failed: tuple[Trial, ...]


class Refinement:
    """The early rounds of one search. ``seed`` shuffles them."""

    def __init__(self, device: Interleaves, problem: Problem, seed: int = 0) -> None:
        self._rounds = Rounds(device, problem, seed, where="in early rounds")
        self._visits: list[dict[str, Samples]] = []
        self.timed: set[str] = set()  # configs that had rounds

    @property
    def rounds(self) -> int:
        """So far, of all visits."""
        return sum(min(len(one.us) for one in visit.values()) for visit in self._visits if visit)

    def next_group(self, leaders: Sequence[Contender]) -> list[Contender]:
        """Of ``leaders``, the cheaply fastest first, the fastest by all that is known and those that had the fewest
        rounds with it; empty when all have had enough."""
        if not leaders:
            return []
        fastest = self._fastest(leaders)
        met = {one.name: self._met(fastest.name, one.name) for one in leaders if one is not fastest}
        others = [one for one in leaders if met.get(one.name, MOST_ROUNDS) < MOST_ROUNDS]
        others.sort(key=lambda one: met[one.name])
        return [fastest, *others[: GROUP - 1]] if others else []

    def run(self, group: Sequence[Contender]) -> EarlyRounds:
        """``ROUNDS`` rounds of ``group``, the fastest first. Raises ``FinalError``."""
        alive = list(group)
        before = len(self._rounds.failed)
        samples = self._rounds.run(alive, ROUNDS, warm_up_ms=WARM_UP_MS, settle_ms=0.0)
        self._visits.append(samples)
        self.timed.update(samples)
        fastest = group[0].name
        found = ((one, self._against(fastest, one.name)) for one in alive if one.name != fastest)
        lost = (_ruled_out(one.trial, fastest, how) for one, how in found if how and _slower(how))
        return EarlyRounds(lost=tuple(lost), failed=tuple(self._rounds.failed[before:]))

    def _fastest(self, leaders: Sequence[Contender]) -> Contender:
        """The first, unless rounds with it found another one faster."""
        best = leaders[0]
        for one in leaders[1:]:
            pairs = self._pairs(best.name, one.name)
            if len(pairs) >= ROUNDS and statistics.median(second / first for first, second in pairs) < 1:
                best = one
        return best

    def _met(self, first: str, second: str) -> int:
        """Rounds in which both took part."""
        return sum(len(visit[first].us) for visit in self._visits if first in visit and second in visit)

    def _against(self, first: str, second: str) -> Paired | None:
        """``second`` against ``first``; None without rounds of both."""
        pairs = self._pairs(first, second)
        return compare([pair[0] for pair in pairs], [pair[1] for pair in pairs]) if pairs else None

    def _pairs(self, first: str, second: str) -> list[tuple[float, float]]:
        """Times of both in each round that both took part in and in which neither was throttled."""
        return [
            (one.us[index], other.us[index])
            for visit in self._visits
            if first in visit and second in visit
            for one, other in [(visit[first], visit[second])]
            for index in range(len(one.us))
            if not (one.states[index].throttled or other.states[index].throttled)
        ]


def _slower(found: Paired) -> bool:
    """Surely, and by more than what one object differs by from process to process."""
    return found.p_value < LEVEL and found.low > 1 + RESOLUTION


def _ruled_out(trial: Trial, by: str, found: Paired) -> Trial:
    evidence: dict[str, Any] = {
        RULED_OUT_BY: by,
        "ruled_out_ratio": round(found.ratio, 6),
        "ruled_out_rounds": found.rounds,
        "ruled_out_p_value": float(f"{found.p_value:.3g}"),
    }
    return dataclasses.replace(trial, evidence={**trial.evidence, **evidence})
