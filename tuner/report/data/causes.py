"""Time by cause of the candidates that were run with a clock: a table, and why one is faster than another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tuner.report.data.clock import Clocked, faster_share, same_time
from tuner.report.data.words import classes_of

TENSOR: Final = "tensor, "  # and the kind of MMA
SMALL_US: Final = 0.05  # a difference that a sentence does not name
SMALL_SHARE: Final = 0.03  # nor one that is so small a part of the whole difference
SHOWN_US: Final = 0.005  # less is a zero in the table


def classes(shown: Sequence[Clocked]) -> dict[str, str]:
    """Cause -> class of its colour, in the order of the bars."""
    return classes_of([one.timeline.words for one in shown])


def ordered_terms(one: Clocked) -> dict[str, float]:
    """Cause -> microseconds in the order of ``classes``; causes nobody has named before come last."""
    terms, known = one.time.terms, classes([one])
    names = [name for name in known if name in terms] + [name for name in terms if name not in known]
    return {name: terms[name] for name in names if terms[name] >= SHOWN_US}


def css_of(cause: str, shown: Sequence[Clocked]) -> str:
    return f"t-{classes(shown).get(cause, 'other')}"


def cause_rows(shown: Sequence[Clocked]) -> list[list[str]]:
    """Per cause the microseconds of each, the difference to the first in brackets; then their sum and the tail wave."""
    causes = list(dict.fromkeys(cause for one in shown for cause in ordered_terms(one)))
    known = list(classes(shown))
    causes.sort(key=lambda cause: known.index(cause) if cause in known else len(known))
    rows = [[cause, *_against_first([one.time.terms.get(cause, 0.0) for one in shown])] for cause in causes]
    rows.append(["sum", *_against_first([one.time.us for one in shown])])
    if any(one.waves for one in shown):
        rows.append(["tail wave, within the above", *_against_first([one.tail_us for one in shown])])
    return rows


def _against_first(values: Sequence[float]) -> list[str]:
    first = values[0]
    return [f"{first:.2f}"] + [f"{value:.2f} ({_signed(value - first)})" for value in values[1:]]


def _signed(difference: float) -> str:
    return f"{difference:+.2f}" if abs(difference) >= SHOWN_US else "0"


def why(winner: Clocked, other: Clocked) -> str:
    """One or two sentences: by how much, how surely, and which causes make the difference."""
    difference = other.time.us - winner.time.us
    if same_time(winner, other):
        return f"The {other.label} configuration takes the same time: what differs has no effect on the simulation."
    sure = f"{faster_share(winner, other):.0%} of {len(winner.time.sets_us)} admissible sets of constants"
    relation = "less" if difference >= 0 else "more"
    amount = f"{abs(difference):.2f} µs ({abs(difference) / other.time.us:.1%}) {relation}"
    head = f"Simulated, the winner takes {amount} than the {other.label} configuration, and less under {sure}"
    less, more = _split(winner, other)
    parts = [f"it spends less on {_list(less)}"] if less else []
    parts += [f"{'but ' if less else ''}more on {_list(more)}"] if more else []
    return f"{head}: {', '.join(parts)}." if parts else f"{head}; no single cause differs by {SMALL_US} µs."


def _split(winner: Clocked, other: Clocked) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
    """(causes on which the winner spends less, more) with microseconds, the largest first."""
    causes = dict.fromkeys([*winner.time.terms, *other.time.terms])
    deltas = [
        (cause, other.time.terms.get(cause, 0.0) - winner.time.terms.get(cause, 0.0)) for cause in causes
    ]
    least = max(SMALL_US, SMALL_SHARE * abs(other.time.us - winner.time.us))
    named = sorted((one for one in deltas if abs(one[1]) >= least), key=lambda one: -abs(one[1]))
    return [one for one in named if one[1] > 0], [one for one in named if one[1] < 0]


def _list(causes: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{_words(cause)} ({abs(us):.2f} µs)" for cause, us in causes)


def _words(cause: str) -> str:
    """A cause as the object of a sentence."""
    return {
        "launch": "the launch",
        "prologue": "the prologue",
        "epilogue exposed": "the exposed epilogue",
        "no tensor work": "work without the tensor pipe",
        "MMA warp issuing": "issuing MMAs",
        "tensor, scale-factor copies": "scale-factor copies",
        "tensor, change of kind": "changes of MMA kind",
    }.get(cause) or (f"{cause.removeprefix(TENSOR)} MMAs" if cause.startswith(TENSOR) else cause)
