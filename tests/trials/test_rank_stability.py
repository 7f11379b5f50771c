"""Shares of constants under which one time is below another, and the winner of a near tie, by hand-made times."""

from __future__ import annotations

import pytest

from tuner.tables.row import Row, make_row
from tuner.trials.outcome import Kind, Origin, Status, Trial
from tuner.trials.rank_stability import faster_in, pack_times, ranked, times_of


def trial(number: int, *sets_us: float, judge: str = "machine-1", **fields: object) -> Trial:
    """A simulated trial whose nominal time is the first of ``sets_us``."""
    evidence = {"judge": judge, "sets_us": pack_times(sets_us), "launch": 2.0}
    base = {
        "number": number, "op": "svdquant_gemm", "problem": "4352,3840,3072,128",
        "options": {"lora_dtype": "fp16", "out_dtype": "fp16"}, "device": "b200",
        "arch": "sm_100a", "config": f"split_k={number + 1}", "resolved": f"split_k={number + 1}", "status": Status.OK,
        "kind": Kind.SIMULATED, "us": sets_us[0], "low_us": min(sets_us), "high_us": max(sets_us), "evidence": evidence,
        "build": {"source_hash": "s", "dsl_version": "4", "cubin_sha256": "c"}, "finished": "2025-01-02T00:00:00+00:00",
    }  # fmt: skip
    return Trial(**{**base, **fields})  # type: ignore[arg-type]


def test_times_survive_their_packing() -> None:
    assert times_of(trial(0, 20.0, 19.25, 31.004)) == (20.0, 19.25, 31.004)


def test_share_counts_sets_and_halves_of_equal_ones() -> None:
    """Faster in the 1st, equal in the 2nd, slower in the 3rd and 4th of four sets: 1.5 / 4."""
    assert faster_in(trial(0, 20, 20, 25, 25), trial(1, 21, 20, 24, 24)) == pytest.approx(0.375)
    assert faster_in(trial(1, 21, 20, 24, 24), trial(0, 20, 20, 25, 25)) == pytest.approx(0.625)


@pytest.mark.parametrize(
    "other",
    [
        trial(1, 21, 21, judge="machine-2"),
        trial(1, 21, 21, 21),
        trial(1, 21, 21, evidence={"judge": "machine-1", "samples": 40}),
    ],
)
def test_times_of_different_machines_do_not_compare(other: Trial) -> None:
    assert faster_in(trial(0, 20, 20), other) is None


def test_order_is_that_of_times_where_they_differ() -> None:
    slow, fast, failed = trial(0, 22, 1, 1), trial(1, 20, 30, 30), trial(2, 19, 1, 1, status=Status.RACE)
    assert ranked([slow, fast, failed]) == [fast, slow]


def test_near_tie_goes_to_the_one_that_wins_in_more_sets() -> None:
    """0.5 % slower under the nominal constants, faster under three of the other four."""
    nominal, stable = trial(0, 20, 25, 25, 25, 18), trial(1, 20.1, 24, 24, 24, 19)
    assert ranked([nominal, stable]) == [stable, nominal]
    far = trial(2, 20.3, 10, 10, 10, 10)
    assert ranked([nominal, far])[0] is nominal, "1.5 % is no tie"


def test_equal_times_go_to_the_default_then_to_the_earlier() -> None:
    late_default = trial(3, 20, 20, origin=Origin.DEFAULT)
    assert ranked([trial(1, 20, 20), trial(2, 20, 20)])[0].number == 1
    assert ranked([trial(1, 20, 20), late_default])[0] is late_default


def test_measured_near_ties_are_ordered_by_time() -> None:
    one = trial(0, 20, 25, kind=Kind.MEASURED)
    other = trial(1, 20.1, 24, kind=Kind.MEASURED)
    assert ranked([other, one]) == [one, other]


def test_row_says_how_sure_the_order_is() -> None:
    row = make_row(
        trial(0, 20, 20, 20, 20), model="m", protocol="simulated", runner_up=trial(1, 21, 21, 21, 19)
    )
    assert row.runner_up is not None and row.runner_up.slower_in == 0.75
    assert "sets_us" not in row.evidence and row.noise_us == 0.0
    assert Row.from_record(row.to_record()) == row


def test_row_of_before_has_no_such_share() -> None:
    record = make_row(trial(0, 20, 20), model="m", protocol="p", runner_up=trial(1, 21, 21)).to_record()
    del record["runner_up"]["slower_in"]
    row = Row.from_record(record)
    assert row.runner_up is not None and row.runner_up.slower_in is None
