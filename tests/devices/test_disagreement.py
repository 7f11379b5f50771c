"""A measured time keeps what the simulator says of the same kernel, and their ratio."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_space.build.build import CompiledKernel, build
from kernel_space.core.arch import SM90A, SM100A
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tests.fakes import FakeDevice
from tuner.devices.card import CudaDevice
from tuner.devices.classes import Card
from tuner.devices.disagreement import against, with_simulation
from tuner.devices.simulated import Chip
from tuner.simulated.time import simulate
from tuner.trials.outcome import Kind, Outcome, Status, Timing

PROBLEM = GemmProblem.parse("1024,3840,3072,128")
CHIP = Chip(name="b200", arch=SM100A, sm_count=148)


class Worker:
    """Says that every kernel takes 20 us."""

    def time(self, *asked: Any) -> SimpleNamespace:
        timing = Timing(kind=Kind.MEASURED, us=20.0, low_us=19.0, high_us=21.0, evidence={"samples": 40})
        return SimpleNamespace(timing=lambda: timing)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    monkeypatch.setattr(CudaDevice, "_make_sure_of_room", lambda self, problem: None)
    b200 = Card(index=0, name="NVIDIA B200", compute_capability=(10, 0), sm_count=148)
    return CudaDevice(name="b200", arch=SM100A, sm_count=148, card=b200, worker=Worker())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def legal() -> Legal:
    found = legalize(KernelConfigSm100a.parse("mma_tiler_mn=128x128"), PROBLEM, SM100A)
    assert isinstance(found, Legal)
    return found


@pytest.fixture(scope="module")
def compiled(legal: Legal) -> CompiledKernel:
    return build(legal.config, PROBLEM.problem_class, SM100A)


def test_measured_trial_holds_the_simulated_time_and_the_ratio(
    card: CudaDevice, compiled: CompiledKernel, legal: Legal
) -> None:
    timing = card.time(compiled, legal, PROBLEM).result().timing
    assert timing is not None and timing.us == 20.0 and timing.evidence["samples"] == 40
    there = simulate(compiled, legal.config, PROBLEM, CHIP)
    assert timing.evidence["simulated_us"] == pytest.approx(there.us, abs=1e-4)
    assert timing.evidence["simulated_low_us"] == pytest.approx(there.low_us, abs=1e-4)
    assert timing.evidence["simulated_high_us"] == pytest.approx(there.high_us, abs=1e-4)
    assert timing.evidence["measured_over_simulated"] == pytest.approx(20.0 / there.us, abs=1e-4)


def test_the_object_never_runs_in_the_tuner_s_process(
    card: CudaDevice, compiled: CompiledKernel, legal: Legal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be anybody's (tune --objects): its host code runs where it can be killed."""

    def forbidden(*_: Any, **__: Any) -> None:
        pytest.fail("an object was loaded into the tuner's process")

    for name in (
        "kernel_space.launch.loading.load_bytes",
        "kernel_space.launch.loading._link",
        "kernel_space.launch.capture.load",
    ):
        monkeypatch.setattr(name, forbidden)
    timing = card.time(compiled, legal, PROBLEM).result().timing
    assert timing is not None and timing.evidence["simulated_us"] > 0


def test_simulated_times_and_other_kernels_hold_none(compiled: CompiledKernel, legal: Legal) -> None:
    simulated = Timing(kind=Kind.SIMULATED, us=20.0, low_us=19.0, high_us=21.0)
    assert with_simulation(simulated, compiled, legal, PROBLEM, FakeDevice()) is simulated
    measured = dataclasses.replace(simulated, kind=Kind.MEASURED)
    assert (
        with_simulation(measured, compiled, legal, PROBLEM, FakeDevice(arch=SM90A, name="h200")) is measured
    )


def test_kernel_without_simulated_time_says_why(
    card: CudaDevice, compiled: CompiledKernel, legal: Legal, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = Outcome(status=Status.UNSUPPORTED, reason="no simulated time: PTX line 7")
    monkeypatch.setattr("tuner.devices.simulated.outcome_in_a_worker", lambda *_: refused)
    timing = card.time(compiled, legal, PROBLEM).result().timing
    assert timing is not None and timing.us == 20.0
    assert timing.evidence["simulated"] == refused.reason and "simulated_us" not in timing.evidence


def test_a_later_time_has_its_own_ratio() -> None:
    first = {
        "simulated_us": 16.0,
        "simulated_low_us": 15.0,
        "simulated_high_us": 18.0,
        "measured_over_simulated": 1.25,
    }
    assert against({**first, "samples": 40}, 24.0) == {**first, "measured_over_simulated": 1.5}
    assert against({"samples": 40}, 24.0) == {}
