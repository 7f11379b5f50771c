"""Launches that overlap on a real card: kernels that read or write too early are races, those that wait are right."""

from __future__ import annotations

import pytest

from tests.gpu.objects import RIGHT, Entry
from tuner.card.card_worker import CandidateFault, CardWorker
from tuner.card.worker.bench import QUICK, FinalsOptions
from tuner.trials.outcome import Status

pytestmark = pytest.mark.gpu


def test_a_kernel_that_waits_passes_and_chains_were_launched(
    worker: CardWorker, objects: dict[str, Entry]
) -> None:
    entry = objects["overlap-waits"]
    for seed in range(3):
        (report,) = worker.check(entry.candidate, [entry.case], repeats=8, seed=seed)
        assert report.chained > 2 * 9 and report.max_ratio <= 1
        assert 0.3 < report.mean_error < report.mean_limit


@pytest.mark.parametrize("way", ["reads_early", "never_waits"])
def test_a_kernel_that_does_not_wait_is_a_race(
    worker: CardWorker, objects: dict[str, Entry], way: str
) -> None:
    """Its launches one at a time are right: it is the chains that tell, and the worker goes on."""
    entry = objects[f"overlap-{way}"]
    assert worker.health
    before = worker.started
    with pytest.raises(CandidateFault) as fault:
        worker.check(entry.candidate, [entry.case], repeats=8, seed=1)
    assert fault.value.status is Status.RACE, str(fault.value)
    assert "of a chain of 9 differ from those of the same launches one at a time" in str(fault.value)
    assert "\n" not in str(fault.value)
    right = objects["overlap-waits"]
    assert worker.check(right.candidate, [right.case], repeats=2, seed=1)[0].chained
    assert worker.started == before, "the context is sound: no new worker"


@pytest.mark.parametrize("name", [name for name in RIGHT if name != "large"])
def test_real_kernels_pass_as_often_as_a_winner_must(
    worker: CardWorker, objects: dict[str, Entry], name: str
) -> None:
    entry = objects[name]
    for report in worker.check(entry.candidate, [entry.case, *entry.ragged], repeats=50, seed=2):
        assert report.chained > 0 and report.mean_error < report.mean_limit


@pytest.mark.parametrize("name", ["overlap-waits", "few-rows", "stream-k", "plain"])
def test_outputs_after_timing_are_those_of_launches_alone(
    worker: CardWorker, objects: dict[str, Entry], name: str
) -> None:
    entry = objects[name]
    assert worker.time(entry.candidate, entry.case, QUICK).us
    assert len(worker.finals([(entry.candidate, entry.case)] * 2, FinalsOptions(rounds=2))) == 2


def test_a_race_between_launches_that_are_timed_is_found(
    worker: CardWorker, objects: dict[str, Entry]
) -> None:
    """Sets rotate, so nothing is read that a launch before wrote: all that two launches share is the workspace."""
    entry = objects["overlap-shares_workspace"]
    with pytest.raises(CandidateFault) as fault:
        worker.time(entry.candidate, entry.case, QUICK)
    assert fault.value.status is Status.RACE, str(fault.value)
    assert "after the launches that were timed, the outputs of" in str(fault.value)
    with pytest.raises(CandidateFault) as fault:
        worker.check(entry.candidate, [entry.case], repeats=8, seed=1)
    assert fault.value.status is Status.RACE, str(fault.value)
