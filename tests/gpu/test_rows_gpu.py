"""An operator outside of the project on a card: two outputs, one of whole numbers. The worker finds it by its name.

Right kernels come from the operator's folder, wrong ones from ``tests/kernels/wrong_rows.py``. The oracle is the
operator's own, to the bit.
"""

from __future__ import annotations

import dataclasses

import pytest

from tests.gpu.objects import RIGHT_QUANTIZE, RIGHT_ROWS, Entry
from tuner.card.card_worker import CandidateFault, CardWorker
from tuner.card.worker.bench import QUICK, FinalsOptions, sets_needed
from tuner.card.worker.launch import max_active_clusters
from tuner.devices.card import bytes_needed
from tuner.trials.outcome import Kind, Status

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", RIGHT_ROWS)
def test_a_right_candidate_passes_with_ragged_problems_too(
    worker: CardWorker, objects: dict[str, Entry], name: str
) -> None:
    entry = objects[name]
    assert len(entry.ragged) == 2
    reports = worker.check(entry.candidate, [entry.case, *entry.ragged], repeats=10, seed=3)
    problems = [one.problem for one in (entry.case, *entry.ragged)]
    assert [report.problem for report in reports] == [str(problem) for problem in problems]
    for problem, report in zip(problems, reports, strict=True):
        assert report.elements == problem.m * problem.k + problem.m, "both outputs"
        assert report.launches == 11, "one source: ten, and the one before them"
        assert (report.max_ratio, report.mean_limit, report.sources) == (0.0, 0.0, "plain")
        assert report.chained > 0


@pytest.mark.parametrize("name", RIGHT_QUANTIZE)
def test_codes_and_scales_are_judged_to_the_bit(
    worker: CardWorker, objects: dict[str, Entry], name: str
) -> None:
    """Scales are padded to 128 rows and four groups of 16 along K; ``lora_act_in`` is [M, R], within a tolerance."""
    entry = objects[name]
    m, k, r = (getattr(entry.case.problem, size) for size in "mkr")
    report, *others = worker.check(entry.candidate, [entry.case, *entry.ragged], repeats=10, seed=4)
    assert report.elements == m * k // 2 + -(-m // 128) * 128 * -(-k // 64) * 4 + m * r
    assert (report.launches, report.sources) == (14, "gaussian, patterns")
    worst = 1.0 if r else 0.0
    assert others and all(one.max_ratio <= worst and one.chained > 0 for one in (report, *others))
    assert worker.time(entry.candidate, entry.case, QUICK).us


WRONG = {
    "rows-counts_zeros": (Status.WRONG_RESULT, "128,256: count: "),
    "rows-leaves_column": (Status.WRONG_RESULT, "128,256: y: 128 of 32768 elements differ"),
    "rows-counts_on": (Status.WRONG_RESULT, "128,256: count: 128 of 128 elements differ"),
    "rows-count_behind": (Status.ILLEGAL_ACCESS, "bytes changed behind count, the first 0 past its end"),
    "rows-reads_early": (Status.RACE, " elements of count of launch "),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_found_and_its_output_named(
    worker: CardWorker, objects: dict[str, Entry], name: str
) -> None:
    status, words = WRONG[name]
    entry = objects[name]
    assert worker.health
    before = worker.started
    with pytest.raises(CandidateFault) as fault:
        worker.check(entry.candidate, [entry.case], repeats=8, seed=1)
    assert (fault.value.status, words in str(fault.value)) == (status, True), str(fault.value)
    assert "\n" not in str(fault.value)
    right = objects["rows-right"]
    assert worker.check(right.candidate, [right.case], repeats=2, seed=1)[0].chained
    assert worker.started == before, "the context is sound: no new worker"


def test_another_operator_is_judged_by_the_same_worker(worker: CardWorker, objects: dict[str, Entry]) -> None:
    for name in ("plain", "rows", "few-rows", "rows-pdl"):
        entry = objects[name]
        assert worker.check(entry.candidate, [entry.case], repeats=2, seed=5)[0].max_ratio <= 1
        assert worker.time(entry.candidate, entry.case, QUICK).us


def test_an_object_of_another_operator_is_refused(worker: CardWorker, objects: dict[str, Entry]) -> None:
    """Called with other arguments it would read stray memory."""
    mixed = dataclasses.replace(objects["rows"], candidate=objects["plain"].candidate)
    with pytest.raises(CandidateFault, match="must take the operator's arguments") as fault:
        worker.time(mixed.candidate, mixed.case, QUICK)
    assert fault.value.status is Status.FAILED


@pytest.mark.alone
def test_times_of_a_candidate_and_of_two_in_turns(worker: CardWorker, objects: dict[str, Entry]) -> None:
    """The bound is physics: x is read and y written once, at most at the 4.8 TB/s of the H200's data sheet."""
    entry = objects["rows-large"]
    problem = entry.case.problem
    samples = worker.time(entry.candidate, entry.case, QUICK)
    timing = samples.timing()
    moved = 2 * 2 * problem.m * problem.k + 4 * problem.m
    assert timing.kind is Kind.MEASURED and moved / 4.8e6 < timing.us < 20 * moved / 4.8e6
    assert samples.sets == sets_needed(moved, worker.health.l2_bytes)
    both = worker.finals([(entry.candidate, entry.case)] * 2, FinalsOptions(rounds=8))
    first, second = (one.timing().us for one in both)
    assert first == pytest.approx(second, rel=0.05), "the same kernel twice"
    assert bytes_needed(problem, worker.health.l2_bytes) < worker.health.free_bytes


def test_an_operator_without_a_grid_of_its_own(worker: CardWorker, objects: dict[str, Entry]) -> None:
    """Nothing bounds its grid, and nobody is asked."""
    entry = objects["rows"]
    sms = worker.health.sm_count
    assert max_active_clusters(entry.candidate, entry.case.problem, 0, sms) == sms
