"""Simulated times know operators by the object alone: several launches of a call, no clusters, no TMA, no formula.

The operator is ``tests/plugins/rowstats``; its times are put together here from runs of single launches.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import pytest

from kernel_space.build.build import CompiledKernel, build
from kernel_space.core import registry
from kernel_space.core.arch import SM100A
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal, legalize
from kernel_space.machine.clock.estimate import TimedRun, joined_runs, simulate_launch
from tests.published import B200
from tuner.devices.simulated import Chip, simulated_outcome
from tuner.report.data.tail_wave import tail_wave
from tuner.search.next_change import best_changes
from tuner.search.prefilter import FACTOR, Prefilter
from tuner.simulated.constants.sets import admissible_sets
from tuner.simulated.model import modelled_time, modelled_us
from tuner.simulated.time import capture_launch, capture_launches, cause_name, simulate, tensor_places
from tuner.trials.outcome import Status

ONE, TWO, TWO_EARLY = "fused=true", "fused=false", "fused=false use_pdl=true"
CHIP = Chip(name="b200", arch=SM100A, sm_count=148)


def problem(text: str = "600,264") -> Problem:
    return registry.operator("rowstats").problem.parse(text)


@functools.cache
def legal(text: str) -> Legal:
    found = legalize(registry.parse_config("rowstats", SM100A, text), problem(), SM100A)
    assert isinstance(found, Legal), found
    return found


def compiled(text: str) -> tuple[CompiledKernel, KernelConfig]:
    config = legal(text).config
    return build(config, problem().problem_class, SM100A), config


def alone(text: str, number: int) -> TimedRun:
    """One launch of a call, clocked by itself: 150 CTAs of 4 warps, 16 to an SM, so that two SMs hold two."""
    kernel, _ = compiled(text)
    launch = capture_launches(kernel, problem(), 148)[number]
    return simulate_launch(
        launch, kernel.ptx, admissible_sets().clock, sm_count=148, places=16 * 148, resident=16, cold=True,
        map_names={}, tensors=tensor_places(kernel, problem()),
    )  # fmt: skip


# -- launches --


@pytest.mark.parametrize(("text", "launches", "early"), [(ONE, 1, 0), (TWO, 2, 0), (TWO_EARLY, 2, 2)])
def test_launches_of_a_call_add_up(text: str, launches: int, early: int) -> None:
    kernel, config = compiled(text)
    time = simulate(kernel, config, problem(), B200())
    sets = admissible_sets()
    runs = [alone(text, number) for number in range(launches)]
    assert all((run.rounds, run.share, run.active_sms) == (1, 2, 148) for run in runs)
    starts = launches * sets.values["launch_us"] - early * sets.values["pdl_gain_us"]
    cycles = np.sum([run.cycles for run in runs], axis=0)
    assert np.allclose(time.sets_us, starts + cycles / sets.values["clock_ghz"] / 1e3)
    assert sum(time.terms.values()) == pytest.approx(time.us)
    assert time.terms["launch"] == pytest.approx(float(starts[0]))


def test_timelines_stand_one_behind_the_other() -> None:
    kernel, config = compiled(TWO)
    run = simulate(kernel, config, problem(), B200(), record=True).run
    first, second = (alone(TWO, number) for number in range(2))
    assert run.cycles[0] == pytest.approx(first.cycles[0] + second.cycles[0])
    assert run.record is not None and joined_runs([first]) is first
    with_records = [
        dataclasses.replace(one, record=[("CTA 0 warp 0", "wait tensor", 1.0, 2.0)])
        for one in (first, second)
    ]
    assert joined_runs(with_records).record == [
        ("CTA 0 warp 0", "wait tensor", 1.0, 2.0),
        ("CTA 0 warp 0", "wait tensor", 1.0 + first.cycles[0], 2.0 + first.cycles[0]),
    ]
    assert joined_runs([with_records[0], second]).record is None


def test_one_launch_is_refused_where_there_are_two() -> None:
    kernel, _ = compiled(TWO)
    with pytest.raises(InputError, match="one launch is wanted, .* makes 2"):
        capture_launch(kernel, problem(), 148)


def test_causes_are_called_by_the_kernel_s_names_or_by_the_operand() -> None:
    assert cause_name("wait: tma weights", {}) == "waiting for weights"
    assert cause_name("tensor: mma f16", {}) == "tensor, fp16"
    assert cause_name("tensor: mma f16", {"tensor: mma f16": "the second product"}) == "the second product"
    assert cause_name("something new", {}) == "something new"


# -- as the tuner uses it --


@pytest.mark.parametrize("text", [ONE, TWO_EARLY])
def test_outcome_of_a_stranger_s_kernel_is_a_time(text: str) -> None:
    kernel, _ = compiled(text)
    outcome = simulated_outcome(kernel, legal(text), problem(), CHIP)
    assert outcome.status is Status.OK and outcome.timing is not None
    assert outcome.timing.low_us < outcome.timing.us < outcome.timing.high_us
    numbers = [value for value in outcome.timing.evidence.values() if isinstance(value, float)]
    assert math.isclose(sum(numbers), outcome.timing.us, rel_tol=1e-3)


def test_without_a_formula_nothing_is_filtered() -> None:
    slow, fast = legal("vec=1"), legal("vec=8")
    assert (
        modelled_us(slow.config, problem(), CHIP) is None
        and modelled_time(slow.config, problem(), CHIP) is None
    )
    prefilter = Prefilter(problem(), CHIP)
    assert prefilter.rejection(fast, wanted=False) is None
    assert prefilter.rejection(slow, wanted=False) is None


def test_kernel_without_a_schedule_has_no_tail_wave() -> None:
    kernel, config = compiled(ONE)
    assert tail_wave(simulate(kernel, config, problem(), B200()), config, problem(), 148) is None


def test_neighbours_are_simulated_without_a_formula() -> None:
    kernel, config = compiled(ONE)
    time = simulate(kernel, config, problem(), B200())
    changes = best_changes(config, time, problem(), B200(), limit=3)
    assert len(changes) == 3 and [one.time.us for one in changes] == sorted(one.time.us for one in changes)


@pytest.fixture
def with_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    stated = dataclasses.replace(registry.kernel("rowstats", "rows"), machine="tests.check.rowstats_machine")
    monkeypatch.setattr(registry, "kernel", lambda operator, name: stated)


def test_formula_schedule_and_names_of_a_module_are_taken(with_machine: None) -> None:
    """600 rows of 264 on 148 SMs, 4 rows a piece: 150 pieces, two waves; vec=1 takes 8 times as long as vec=8."""
    kernel, config = compiled(ONE)
    time = simulate(kernel, config, problem(), B200())
    assert "reading rows" in time.terms and "executing" not in time.terms
    tail = tail_wave(time, config, problem(), 148)
    assert tail is not None and tail[1] == "150 pieces on 148 clusters are 1.01 waves, run as 2"
    assert modelled_us(legal("vec=8").config, problem(), CHIP) == pytest.approx(600 * 264 / 8 / 148)
    prefilter = Prefilter(problem(), CHIP)
    assert prefilter.rejection(legal("vec=8"), wanted=False) is None
    rejected = prefilter.rejection(legal("vec=1"), wanted=False)
    assert rejected is not None and FACTOR < 8 and "more than 1.75 x" in rejected.reason
    elsewhere = dataclasses.replace(CHIP, arch=dataclasses.replace(SM100A, name="sm_103a"))
    assert modelled_us(legal("vec=8").config, problem(), elsewhere) is None, "stated for sm_100a alone"
