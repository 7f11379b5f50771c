"""In which share of the admissible constants one simulated candidate is faster than another, and who wins a near tie.

A simulated trial keeps its time under every set of constants (``SETS_US`` of its evidence), so that two trials of the
same simulator can be compared set by set, without running anything again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Final

from tuner.trials.final_order import finalists_first
from tuner.trials.outcome import Kind, Origin, Trial

SETS_US: Final = "sets_us"
JUDGE: Final = "judge"
NEAR: Final = 0.01  # nominal times within this share of the best are as good as equal: the sets decide
MOST: Final = 16  # so many of them are compared with each other


def pack_times(sets_us: Sequence[float]) -> str:
    """Microseconds under each set, nominal first, as one word of evidence."""
    return " ".join(f"{us:.5g}" for us in sets_us)


def times_of(trial: Trial) -> tuple[float, ...]:
    """Inverse of ``pack_times``; empty for a trial that was not simulated."""
    return _unpack(str(trial.evidence.get(SETS_US, "")))


@functools.lru_cache(maxsize=4096)
def _unpack(packed: str) -> tuple[float, ...]:
    return tuple(float(us) for us in packed.split())


def faster_in(faster: Trial, slower: Trial) -> float | None:
    """Share of the sets under which ``faster`` is the faster one, an equal time counting half; None when the two
    were not simulated by the same machine with the same sets."""
    first, second = times_of(faster), times_of(slower)
    same = faster.evidence.get(JUDGE) == slower.evidence.get(JUDGE) and len(first) == len(second)
    if not first or not same:
        return None
    wins = sum((one < other) + 0.5 * (one == other) for one, other in zip(first, second, strict=True))
    return wins / len(first)


def ranked(trials: Iterable[Trial]) -> list[Trial]:
    """Usable trials, best first: by time; among simulated ones within ``NEAR`` of the fastest the one that beats it
    and each other in most sets comes first; measured ones that met in a final as that decided. Of equals, the default,
    then the earlier candidate."""
    order = finalists_first(
        sorted(
            (trial for trial in trials if trial.ok), key=lambda trial: (trial.us or 0.0, _seniority(trial))
        )
    )
    near = [trial for trial in order[:MOST] if _is_near(trial, order[0])]
    if len(near) < 2:
        return order
    first = max(near, key=lambda trial: (_mean_share(trial, near), -(trial.us or 0.0)))
    return [first, *(trial for trial in order if trial is not first)]


def _seniority(trial: Trial) -> tuple[bool, int]:
    return (trial.origin is not Origin.DEFAULT, trial.number)


def _is_near(trial: Trial, best: Trial) -> bool:
    if trial.kind is not Kind.SIMULATED or faster_in(trial, best) is None:
        return False
    return (trial.us or 0.0) <= (best.us or 0.0) * (1 + NEAR)


def _mean_share(trial: Trial, others: Sequence[Trial]) -> float:
    """Average share in which ``trial`` beats each of ``others``."""
    shares = [faster_in(trial, other) or 0.0 for other in others if other is not trial]
    return sum(shares) / len(shares)
