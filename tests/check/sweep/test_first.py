"""The check of a mutant: which run comes first, and where it ends. Oracle: the order counted by hand."""

from __future__ import annotations

import types
from typing import Any

import pytest

from kernel_space.check.sweep import first

SECONDS = {"large": 9.0, "small": 1.0, "middle": 3.0}


class Check:
    """Notes its runs; fails at ``fails``."""

    ran: list[tuple[str, str]] = []
    fails: tuple[str, str] | None = None

    def __init__(self, compiled: Any, config: Any, problem: str, sms: int, **_: Any) -> None:
        self.problem, self.failed = problem, False

    def run(self, schedule: str, observer: None) -> None:
        Check.ran.append((schedule, self.problem))
        self.failed = Check.fails == (schedule, self.problem)

    def result(self) -> str:
        return f"{self.problem} {'failed' if self.failed else 'passed'}"


def found(monkeypatch: pytest.MonkeyPatch, fails: tuple[str, str] | None) -> list[str]:
    monkeypatch.setattr(first, "ProblemCheck", Check)
    monkeypatch.setattr(first, "joined", list)
    monkeypatch.setattr(first, "seconds", SECONDS.__getitem__)
    monkeypatch.setattr(Check, "ran", [])
    monkeypatch.setattr(Check, "fails", fails)
    problems: Any = (("large", 1), ("small", 3), ("middle", 3))
    nothing: Any = types.SimpleNamespace()
    result: Any = first.first_finding(nothing, nothing, problems, schedules=("a", "b"), seed=0, ptx="")
    return result  # type: ignore[no-any-return]  # of the stub above


def test_the_cheapest_problem_comes_first_and_each_schedule_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, None) == ["small passed", "middle passed", "large passed"]
    assert Check.ran == [(schedule, one) for schedule in "ab" for one in ("small", "middle", "large")]


@pytest.mark.parametrize(("fails", "runs"), [(("a", "small"), 1), (("a", "large"), 3), (("b", "middle"), 5)])
def test_nothing_runs_behind_the_first_finding(
    monkeypatch: pytest.MonkeyPatch, fails: tuple[str, str], runs: int
) -> None:
    assert found(monkeypatch, fails) == [f"{fails[1]} failed"]
    assert len(Check.ran) == runs
