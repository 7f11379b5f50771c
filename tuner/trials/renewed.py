"""A sweep of which some candidates were judged again, or that others were added to: what its page shows then."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final

from tuner.trials.outcome import Origin, Trial

# Facts of a sweep; a page without them holds trials of one journal.
RENEWED: Final = "retimed"
JOINED: Final = "merged"


def renewed(sweep: Iterable[Trial], again: Mapping[str, Trial]) -> list[Trial]:
    """``sweep`` with ``again`` (by resolved config) in place of the same candidates, others of these at its end.

    A candidate keeps its number, seed and origin in the sweep, unless it is the default now: so the page still shows
    how the search went. Of a rejected point nothing is known anew.
    """
    left, found = dict(again), []
    for old in sweep:
        now = left.pop(old.resolved, None) if old.resolved else None
        found.append(old if now is None else _in_place_of(old, now))
    number = 1 + max((trial.number for trial in found), default=-1)
    rest = [dataclasses.replace(one, number=number + place) for place, one in enumerate(left.values())]
    return [*found, *rest]


def _in_place_of(old: Trial, now: Trial) -> Trial:
    origin = now.origin if now.origin is Origin.DEFAULT else old.origin
    return dataclasses.replace(now, number=old.number, seed=old.seed, origin=origin)


def renewed_fact(count: int, total: int, date: str, changed: str) -> str:
    """``changed``: since the sweep, in words."""
    since = f"; the sweep was before: {changed}" if changed else ""
    return f"{count} of {total} candidates on {date}; the times of the others are of the sweep{since}"
