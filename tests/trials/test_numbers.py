"""Numbers of trials: two tuners count alike, a reader sees each number once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tests.report.test_report import SIX, stages, trial
from tuner.trials.candidate import distinct
from tuner.trials.study import Identity, Study

IDENTITY = Identity(
    op="svdquant_gemm",
    device="b200",
    arch="sm_100a",
    problem="4352,3840,3072,128",
    options={"lora_dtype": "fp16", "out_dtype": "fp16"},
    source_hash="a",
    dsl_version="1",
    judge="j",
)


def test_the_second_with_a_number_gets_the_next_free_one() -> None:
    """By hand: 0, 1, then another candidate 1 -> 2, then one that says 2, which is taken -> 3."""
    trials = [trial(number, 20.0, config=stages(count)) for number, count in ((0, 2), (1, 3), (1, 4), (2, 5))]
    assert [one.number for one in distinct(trials)] == [0, 1, 2, 3]
    assert distinct(SIX) == SIX


def test_a_candidate_keeps_its_number() -> None:
    first = trial(7, 20.0)
    later = dataclasses.replace(first, number=0, us=19.5)
    assert [(one.number, one.us) for one in distinct([first, later])] == [(7, 20.0), (7, 19.5)]


def test_points_that_are_no_candidates_stay_as_they_are() -> None:
    nothing = [trial(-1, None, resolved=""), trial(-1, None, resolved="")]
    assert distinct(nothing) == nothing


def test_two_tuners_of_one_journal(tmp_path: Path) -> None:
    """Each counts from 0; both see, and whoever reads later sees, four numbers for four candidates."""
    one, other = (Study(tmp_path, IDENTITY) for _ in range(2))
    for number in range(2):
        one.append(trial(number, 20.0, config=stages(number + 2)))
        other.append(trial(number, 21.0, config=stages(number + 4)))
    one.append(trial(1, 19.0, config=stages(3)))  # supplements what it said before
    seen = [[trial.number for trial in study.trials.values()] for study in (one, Study(tmp_path, IDENTITY))]
    assert seen == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert len({config for config in Study(tmp_path, IDENTITY).trials}) == 4
