"""What a final leaves in the trials of its contenders, and the order that it gives them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tuner.trials.outcome import Kind, Trial

FINAL: Final = "final"  # which final: UTC time and problem
PLACE: Final = "final_place"  # 1: the winner
QUICK_US: Final = "quick_us"  # what the search was told
RULED_OUT_BY: Final = "ruled_out_by"  # which kernel was faster in rounds during the search


def in_the_running(trials: Iterable[Trial], among: Iterable[Trial]) -> list[Trial]:
    """Those that nothing was faster than in early rounds. The verdict of a kernel that is not usable ``among`` all, as
    it turned out to be wrong, is void."""
    usable = {trial.resolved for trial in among if trial.ok}
    return [trial for trial in trials if trial.evidence.get(RULED_OUT_BY) not in usable]


def latest_final(trials: Iterable[Trial]) -> str:
    """The newest final among the usable ``trials``; empty when there was none."""
    return max((str(trial.evidence.get(FINAL, "")) for trial in trials if trial.ok), default="")


def contenders_of(trials: Iterable[Trial], final: str) -> set[str]:
    """Resolved configs that took part in ``final`` and stand."""
    return {trial.resolved for trial in trials if final and trial.ok and trial.evidence.get(FINAL) == final}


def finalists_first(order: Sequence[Trial]) -> list[Trial]:
    """``order`` with the contenders of the latest final ahead, by their place: a paired test has decided there, which
    a comparison of two times taken alone cannot overrule.
    """
    final = latest_final(order)
    if not final:
        return list(order)
    placed = [trial for trial in order if trial.evidence.get(FINAL) == final]
    return [
        *sorted(placed, key=lambda trial: trial.evidence[PLACE]),
        *(trial for trial in order if trial.evidence.get(FINAL) != final),
    ]


def row_first(order: Sequence[Trial], config: str, kind: Kind) -> list[Trial]:
    """``order`` with the trial of a dispatch row ahead of all: it is what is launched. Where visits were merged, the
    latest final orders its own contenders only, and the table may hold a faster one of another final.
    """
    return sorted(order, key=lambda trial: (trial.resolved, trial.kind) != (config, kind))


def searched_us(trial: Trial) -> float | None:
    """The time that a search was told of ``trial``, so that a resumed one takes the same course."""
    return trial.evidence.get(QUICK_US, trial.us)
