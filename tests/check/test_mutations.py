"""Every mutation of the suite is reported for what it is; the unmodified kernels of the same configs never are.

The oracle of each is written at the mutation: the class of the report, the barrier and the cause that it must name.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernel_space.core.errors import InputError
from kernel_space.machine.run.schedules import SCHEDULES
from kernel_space.operators.svdquant_gemm.mutations.suite import (
    CASES,
    KINDS,
    MUTATIONS,
    NotApplicable,
    find_mutation,
    table,
    table_of_kinds,
)
from tests.check.mutation_runs import case_kernel, failure, run_mutation, run_text

DOCUMENT = Path(__file__).parents[2] / "docs" / "mutations.md"
CAUGHT = [name for name, found in MUTATIONS.items() if found.expected != ("survives",)]
SURVIVORS = [name for name in MUTATIONS if name not in CAUGHT]


SLOW_CASES = ("early", "cluster", "overlap", "split", "wide")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow) if case in SLOW_CASES else case for case in CASES]
)
def test_nothing_is_reported_of_unmodified_kernels(case: str) -> None:
    assert run_text(case, None, *SCHEDULES).text == ""


@pytest.mark.parametrize("name", CAUGHT)
def test_a_mutation_is_reported_for_what_it_is(name: str) -> None:
    found = MUTATIONS[name]
    assert failure(found, run_mutation(found, found.by[0])) == ""


@pytest.mark.parametrize("name", SURVIVORS)
def test_a_survivor_has_a_reason_and_really_survives(name: str) -> None:
    found = MUTATIONS[name]
    assert len(found.reason) > 40
    assert run_mutation(found, "random").classes == frozenset()


@pytest.mark.slow
@pytest.mark.parametrize("name", CAUGHT)
def test_the_schedules_that_catch_it_are_the_stated_ones(name: str) -> None:
    found = MUTATIONS[name]
    verdicts = {schedule: run_mutation(found, schedule) for schedule in SCHEDULES}
    failures = {schedule: failure(found, verdict) for schedule, verdict in verdicts.items()}
    assert {schedule for schedule, why in failures.items() if not why} == set(found.by), failures
    seen = frozenset().union(*(verdict.classes for verdict in verdicts.values()))
    assert seen >= set(found.expected), f"never reported as {set(found.expected) - seen}"


@pytest.mark.slow
@pytest.mark.parametrize("name", SURVIVORS)
def test_a_survivor_survives_every_schedule(name: str) -> None:
    found = MUTATIONS[name]
    assert {schedule: run_mutation(found, schedule).text for schedule in SCHEDULES} == dict.fromkeys(
        SCHEDULES, ""
    )


def test_every_deadlock_names_a_barrier_and_a_cause() -> None:
    deadlocks = [found for found in MUTATIONS.values() if found.expected[0] == "DEADLOCK"]
    assert len(deadlocks) > 30
    assert [
        found.name for found in deadlocks if not (found.barrier or "bar" in found.cause) or not found.cause
    ] == []


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_changes_few_lines(name: str) -> None:
    found = MUTATIONS[name]
    kernel = case_kernel(found.case)
    before = set(kernel.ptx.split("\n"))
    after = found.apply(kernel.ptx, kernel.context).split("\n")
    added = [line for line in after if line.strip() and line not in before]
    assert after != kernel.ptx.split("\n")
    assert len(added) <= 16, added


@pytest.mark.parametrize("case", CASES)
def test_regions_are_where_the_kernel_initialises_its_barriers(case: str) -> None:
    """One mbarrier.init per slot, each 8 bytes behind the one before; the last word is 8-byte aligned memory."""
    kernel = case_kernel(case)
    stored = {int(offset) for offset in re.findall(r"mbarrier\.init\S*\s+\[%r\d+\+(\d+)\]", kernel.ptx)}
    named = {
        region.offset + 8 * slot
        for region in kernel.context.regions
        if region.name.endswith(("_full", "_empty"))
        for slot in range(region.slots)
    }
    assert stored and stored <= named
    inits = len(re.findall(r"mbarrier\.init", kernel.ptx))
    assert inits == len(named) + (kernel.config.cta_group == 2)


@pytest.mark.parametrize(
    ("name", "case", "what"),
    [
        ("no_dealloc_wait", "solo", "tmem_dealloc"),
        ("lora_producer_parity", "ride", "lora_empty"),
        ("b_without_multicast", "solo", "not multicast"),
        ("ride_expects_a_full_stage", "solo", "lora_buffer=ab_stage"),
        ("split_count_relaxed", "solo", "atom"),
        ("no_sfb_shift_at_64", "overlap", "128-row atom"),
    ],
)
def test_a_kernel_without_the_instruction_is_refused(name: str, case: str, what: str) -> None:
    kernel = case_kernel(case)
    with pytest.raises(NotApplicable, match=what):
        MUTATIONS[name].apply(kernel.ptx, kernel.context)


@pytest.mark.parametrize("case", CASES)
def test_on_any_kernel_it_applies_or_says_what_is_missing(case: str) -> None:
    """Other exceptions fail the test: a mutation must not stumble over a kernel it was not written for."""
    kernel = case_kernel(case)
    refused = []
    for found in MUTATIONS.values():
        try:
            assert found.apply(kernel.ptx, kernel.context) != kernel.ptx
        except NotApplicable as reason:
            refused.append((found.name, str(reason)))
    own = {found.name for found in MUTATIONS.values() if found.case == case}
    assert not own & {name for name, _ in refused}
    assert 0 < len(refused) < len(MUTATIONS) / 2, refused


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"unknown mutation 'nonsense'; known are ab_producer_parity "):
        find_mutation("nonsense")


def test_the_suite_is_as_large_as_promised_and_documented() -> None:
    assert len(CAUGHT) >= 45
    assert table() in DOCUMENT.read_text()
    assert table_of_kinds() in DOCUMENT.read_text()


def test_every_mutation_is_of_one_kind() -> None:
    assert sorted(name for names in KINDS.values() for name in names) == sorted(MUTATIONS)
