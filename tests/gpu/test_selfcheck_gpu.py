"""Selfcheck on this machine's card. The oracle is the card."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_space.selfcheck.card import run_on_card
from kernel_space.selfcheck.catalogue import catalogue
from kernel_space.selfcheck.fixture import load
from kernel_space.selfcheck.report import judge_all
from kernel_space.selfcheck.text.probe import Result

H200 = Path(__file__).parents[1] / "data" / "selfcheck" / "h200.json"
pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def measured() -> tuple:
    return run_on_card(catalogue())


def test_the_machine_agrees_with_the_card(measured: tuple) -> None:
    card, results = measured
    report = judge_all(catalogue(), card, results)
    assert not report.news, [f"{item.probe.name}: {item.detail}" for item in report.news]


def test_an_h200_leaves_the_captured_bytes_again(measured: tuple) -> None:
    card, results = measured
    captured = load(H200)
    if card.name != captured.card.name:
        pytest.skip(f"this is a {card.name}; the capture is of a {captured.card.name}")
    changed = [name for name, old in captured.results.items() if _key(results[name]) != _key(old)]
    assert not changed


def _key(result: Result) -> tuple:
    return result.ending, result.data, result.descriptors
