"""Which times compare, and one figure for a pair: worked out by hand from a search and its final."""

from __future__ import annotations

from typing import Any

import pytest

from tests.report.test_report import Page, stages, sweep, trial
from tuner.report.data.pairs import compared, order
from tuner.report.data.state import in_state, searched, states, timing_words, told
from tuner.report.html import render_html
from tuner.report.markdown import render_markdown
from tuner.stages.report import runner_up_of
from tuner.trials.outcome import Kind, Trial

FINAL = "2025-11-21 x"
CARD = {"driver": "580.1", "card": "f19de2e7"}


def measured(number: int, us: float, **evidence: Any) -> Trial:
    fields = {"kind": Kind.MEASURED, "low_us": us - 0.1, "high_us": us + 0.1, "config": stages(number + 2)}
    return trial(number, us, evidence={**CARD, **evidence}, **fields)


def contender(number: int, us: float, place: int, quick: float, **test: Any) -> Trial:
    return measured(number, us, final=FINAL, final_place=place, quick_us=quick, **test)


def ratio(value: float, versus: str) -> dict[str, Any]:
    return {
        "versus": versus,
        "ratio": value,
        "ratio_low": value - 0.001,
        "ratio_high": value + 0.001,
        "p_value": 0.01,
        "rounds": 24,
    }


# Cold timings say 138 us; the final, on a hot card, 162. Trial 2 left it early, at a clock in between; 3 stayed out.
WINNER = contender(0, 162.0, 1, 138.5, **ratio(1.002, "runner-up"))
SECOND = contender(1, 162.1, 2, 138.0, **ratio(1.002, "winner"))
EARLY = contender(2, 157.0, 3, 139.0)
OUTSIDE = measured(3, 139.6)
FINALISTS = [WINNER, SECOND, EARLY, OUTSIDE]


def test_contenders_are_compared_by_their_rounds_and_others_by_what_the_search_was_told() -> None:
    pair = compared(SECOND, WINNER)
    assert pair is not None and (pair.ratio, pair.paired, pair.interval) == (1.002, True, "1.0010 to 1.0030")
    early, outside = compared(EARLY, WINNER), compared(OUTSIDE, WINNER)
    assert early is not None and (early.ratio, early.paired) == (pytest.approx(139.0 / 138.5), False)
    assert outside is not None and outside.ratio == pytest.approx(139.6 / 138.5)


def test_nobody_outside_of_the_final_seems_faster_than_its_winner() -> None:
    """As trials stand in the journal, 157.0 and 139.6 us are less than 162."""
    record = Page(render_html(sweep(FINALISTS, winner=WINNER, runner_up=SECOND))).record
    rows = {row["number"]: row for row in record["trials"]}
    assert [rows[number]["us"] for number in range(4)] == [138.5, 138.0, 139.0, 139.6]
    assert [rows[number]["rank"] for number in range(4)] == [1, 2, 3, 4]
    assert all(row["ratio"] >= 1 for row in rows.values())
    text = render_markdown(sweep(FINALISTS, winner=WINNER, runner_up=SECOND))
    assert "157.00" not in text
    assert "| #3 | 139.60 | 140 to 140 | +0.8% |" in text and "| #1 | 138.00 | – | +0.2%, final |" in text


def test_a_pair_has_one_figure_on_a_page() -> None:
    """1.002 within the rounds, 0.9964 by first timings, 1.0006 by times of the final: the first alone is said."""
    words = Page(render_html(sweep(FINALISTS, winner=WINNER, runner_up=SECOND))).words
    assert "the runner-up takes 1.0020 of the winner's time (1.0010 to 1.0030" in words
    assert "-0.4%" not in words and "+0.1%" not in words and "0.1%" not in words


def test_times_of_another_card_do_not_compare() -> None:
    other = measured(4, 100.0, card="other")
    assert compared(other, WINNER) is None
    whole = sweep([*FINALISTS, other], winner=WINNER)
    assert told(states(whole)) == ["card f19de2e7", "card other"]
    assert [one.number for one in in_state(whole.trials, states(whole)[0])] == [0, 1, 2, 3]
    record = Page(render_html(whole)).record
    assert record["groups"] == ["card f19de2e7", "card other"]
    assert [(row["group"], row["ratio"]) for row in record["trials"] if row["number"] == 4] == [(1, None)]


def test_a_final_without_a_first_timing_leaves_a_trial_without_a_time() -> None:
    lost = measured(5, 150.0, final=FINAL, final_place=4)
    assert searched(lost).us is None and searched(OUTSIDE) is OUTSIDE
    assert timing_words(sweep(FINALISTS)) == "measured, first timing"


def test_the_runner_up_is_the_second_of_the_winners_own_final() -> None:
    """A later final of others ranks before it, by name; the row says who won."""
    later = contender(4, 170.0, 1, 145.0)
    later = trial(4, 170.0, evidence={**later.evidence, "final": "2025-11-22 y"}, config=stages(6))
    ranked = [WINNER, later, OUTSIDE, SECOND, EARLY]
    assert runner_up_of(ranked, None) is SECOND
    assert runner_up_of([OUTSIDE, WINNER], None) is WINNER
    assert runner_up_of([WINNER], None) is None


def test_order_of_a_page() -> None:
    whole = sweep(FINALISTS[::-1], winner=WINNER, runner_up=SECOND)
    assert [one.number for one in order(whole, WINNER, SECOND)] == [0, 1, 2, 3]


def test_a_ratio_that_is_no_number_is_none() -> None:
    odd = contender(1, 162.1, 2, 138.0, **{**ratio(1.0, "winner"), "ratio": "<b>"})
    pair = compared(odd, WINNER)
    assert pair is not None and not pair.paired
