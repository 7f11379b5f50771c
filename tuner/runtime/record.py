"""``record_problems``: which problems a model meets at run time, how often, and what is launched for each.

While somebody listens every call goes the long way, which costs microseconds a call. A replayed CUDA graph makes no
calls: record one eager or compiled run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from kernel_space.core.plain_files import AnyPath
from kernel_space.core.problem import Problem
from kernel_space.places import COMMAND
from tuner.files.notice import notice
from tuner.files.store import atomic_write
from tuner.runtime import state
from tuner.runtime.load.plan import Plan

REFERENCE = "torch reference"
MOST_SAVED = 400  # problems, which what reads the file takes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Met:
    """``calls`` of one problem. ``fallback``: what was launched instead of an object tuned for it; empty: its own."""

    calls: int
    fallback: str


class Seen:
    """``problems``: what was met, in the order of first calls. ``str()`` is a table.

    ``alternatives``: problems of other operators that calls may become once these are tuned, and of how many calls.
    """

    def __init__(self) -> None:
        self.problems: dict[Problem, Met] = {}
        self.alternatives: dict[Problem, int] = {}
        self._lock = threading.Lock()

    def note(self, problem: Problem, plan: Plan | None) -> None:
        """One more call. ``plan``: None where the torch reference computes it."""
        with self._lock:
            known = self.problems.get(problem)
            calls = 1 if known is None else known.calls + 1
            self.problems[problem] = Met(calls=calls, fallback=_fallback(plan))

    def note_alternative(self, problem: Problem) -> None:
        """One more call that may become one of ``problem``."""
        with self._lock:
            self.alternatives[problem] = self.alternatives.get(problem, 0) + 1

    def save(self, path: AnyPath) -> None:
        """Write them as YAML for ``--shapes``, most calls first; at most ``MOST_SAVED``, and a line says so.

        Raises ``StoreError`` when the disk refuses.
        """
        entries = [_entry(problem, met) for problem, met in self._ordered()]
        if len(entries) > MOST_SAVED:
            notice(
                f"{path} has the {MOST_SAVED} problems with most calls, {len(entries) - MOST_SAVED} are left out"
            )
        lines = [f"- {json.dumps(entry)}\n" for entry in entries[:MOST_SAVED]]  # which is YAML too
        head = f"# What ran, how often, and what was launched for it: {COMMAND} --shapes {Path(path).name}\n"
        atomic_write(
            Path(path), f"{head}problems:{chr(10) if lines else ' []' + chr(10)}{''.join(lines)}", follow=True
        )

    def __str__(self) -> str:
        lines = [
            f"{met.calls:7d} x {problem.operator} {problem}  {met.fallback or 'its own'}"
            for problem, met in self._ordered()
        ]
        return "\n".join(lines) if lines else "no problem was met"

    def _ordered(self) -> list[tuple[Problem, Met]]:
        return sorted(self.problems.items(), key=lambda item: -item[1].calls)


def _fallback(plan: Plan | None) -> str:
    if plan is None:
        return REFERENCE
    choice = plan.choice
    source = "" if choice.source == "exact" else choice.source
    return ", ".join(part for part in (source, choice.stand_in.note if choice.is_padded else "") if part)


def _entry(problem: Problem, met: Met) -> dict[str, str | int]:
    entry: dict[str, str | int] = {"op": problem.operator, "shape": str(problem), **problem.options}
    entry["calls"] = met.calls
    return {**entry, "fallback": met.fallback} if met.fallback else entry


_listening: tuple[Seen, ...] = ()
_change = threading.Lock()


def listening() -> bool:
    """Whether any call is to be noted."""
    return bool(_listening)


def note(problem: Problem, plan: Plan | None) -> None:
    """A call was made."""
    for seen in _listening:
        seen.note(problem, plan)


def note_alternatives(problems: Iterable[Problem]) -> None:
    """A call was made that may become one of these."""
    for problem in problems:
        for seen in _listening:
            seen.note_alternative(problem)


@contextlib.contextmanager
def record_problems() -> Iterator[Seen]:
    """``with record_problems() as seen: model(x)``: every problem that any thread meets inside, in ``seen``."""
    global _listening
    seen = Seen()
    with _change:
        _listening = (*_listening, seen)
    state.forget_calls()
    try:
        yield seen
    finally:
        with _change:
            _listening = tuple(one for one in _listening if one is not seen)
