"""Times that compare: of one kind, taken by one judge or card, in one way.

A search times every candidate briefly, on a card that has hardly warmed up. A final times a few in turns for seconds,
when the card is hot and has lowered its clock: 138 us become 162 us. Charts and tables over all trials therefore show
what the search was told of each; a final has a table of its own, and two of its contenders are compared by their ratio
within the same rounds (``pairs.py``).
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final

from tuner.report.data.sweep import Sweep, timed, winner_and_runner_up
from tuner.trials.final_order import FINAL, QUICK_US
from tuner.trials.outcome import Kind, Trial

FIRST: Final = "first timing"  # of a trial that has been in a final, or could have been
_SHOWN: Final = 12  # characters of a hash or of a card's name

State = tuple[tuple[str, str], ...]


def searched(trial: Trial) -> Trial:
    """``trial`` with the time that its search was told; without one if only a final's is known.

    Of a first timing that a final replaced, the interval is not kept.
    """
    if FINAL not in trial.evidence:
        return trial
    quick = trial.evidence.get(QUICK_US)
    return dataclasses.replace(trial, us=quick if _is_number(quick) else None, low_us=None, high_us=None)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def state_of(trial: Trial) -> State:
    """What times of one table must share."""
    evidence = trial.evidence
    names = ("judge", "driver", "card", "timing_protocol")
    return (
        ("kind", str(trial.kind)),
        *((name, str(evidence[name])) for name in names if evidence.get(name)),
    )


def states(sweep: Sweep) -> list[State]:
    """Of the timed trials, that of the winner first, then by the number of trials."""
    winner = winner_and_runner_up(sweep)[0]
    counts = collections.Counter(state_of(trial) for trial in timed(map(searched, sweep.trials)))
    own = state_of(winner) if winner else None
    return sorted(counts, key=lambda state: (state != own, -counts[state], state))


def largest(sweep: Sweep) -> State | None:
    """The state that most trials were timed in; None without times."""
    counts = collections.Counter(state_of(trial) for trial in timed(map(searched, sweep.trials)))
    return max(states(sweep), key=lambda state: counts[state], default=None)


def in_state(trials: Iterable[Trial], state: State | None) -> list[Trial]:
    """Trials with the time that their search was told; of another state, or without one, they are left out."""
    return [trial for trial in timed(map(searched, trials)) if state_of(trial) == state]


def told(found: Sequence[State]) -> list[str]:
    """Each state in words: what differs among them."""
    if len(found) < 2:
        return ["all" for _ in found]
    common = set.intersection(*map(set, found))
    texts = [
        ", ".join(f"{name} {value[:_SHOWN]}" for name, value in one if (name, value) not in common)
        for one in found
    ]
    return [text or "no more is known" for text in texts]


def timing_words(sweep: Sweep) -> str:
    """What a column of these times is called."""
    winner = winner_and_runner_up(sweep)[0]
    if winner is None or winner.kind is not Kind.MEASURED:
        return str(winner.kind) if winner else "no time"
    finals = any(FINAL in trial.evidence for trial in sweep.trials)
    return f"measured, {FIRST}" if finals else "measured"
