"""How ``measure --budget-seconds`` shares out what is left: a card's start is nobody's share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tuner.cli.tune import measure


class Device:
    """A card whose worker takes 20 s to begin, and a clock that only it and the problems move."""

    name = "h200"

    def __init__(self) -> None:
        self.now = 0.0
        self.started = False

    @property
    def judge(self) -> str:
        if not self.started:
            self.started, self.now = True, self.now + 20.0
        return "a card"


def shares(monkeypatch: pytest.MonkeyPatch, budget_s: float | None) -> list[float | None]:
    """Seconds for the candidates of three problems, of which each takes all of its share and 4 s more."""
    device: Any = Device()
    found: list[float | None] = []

    def measured(problem: Any, entries: Any, device: Any, args: Any, options: Any, peers: Any) -> Any:
        assert device.judge
        found.append(options.timeout_s)
        device.now += (options.timeout_s or 0.0) + 4.0
        return SimpleNamespace(stopped=None)

    def turns(work: Any, *rest: Any, **named: Any) -> Any:
        yield from work

    monkeypatch.setattr(measure.time, "monotonic", lambda: device.now)
    monkeypatch.setattr(measure, "in_turn", turns)
    monkeypatch.setattr(measure, "_measure", measured)
    args: Any = SimpleNamespace(budget_seconds=budget_s, out="out", peers=False)
    work: Any = {name: () for name in ("first", "second", "third")}
    list(measure._measure_all(work, device, args, 0.0))
    return found


def test_the_first_problem_has_as_much_as_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = shares(monkeypatch, 110.0)
    assert first == (110 - 20) / 3 - measure.RESERVE_S
    # What a problem leaves of its reserve is the next ones'.
    assert second == first + 2.0 and third == second + 4.0


def test_without_a_budget_nothing_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shares(monkeypatch, None) == [None, None, None]
