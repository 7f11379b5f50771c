"""A measured time keeps what the simulator says of the same kernel, and their ratio."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kernel_space.arch import SM90A, SM100A
from kernel_space.build import CompiledKernel, build
from kernel_space.config_sm100a import KernelConfigSm100a
from kernel_space.problem import GemmProblem
from kernel_space.rules import Legal, legalize
from tests.fakes import FakeDevice
from tests.test_search import Candidate
from tuner.compile_worker import CompileResult
from tuner.device import Device
from tuner.disagreement import against, with_simulation
from tuner.evaluate import evaluate
from tuner.outcome import Kind, Origin, Outcome, Status, Timing
from tuner.simulated_device import Chip
from tuner.simulated_time import simulate

PROBLEM = GemmProblem.parse("1024,3840,3072,128")
CHIP = Chip(name="b200", arch=SM100A, sm_count=148)


@dataclasses.dataclass(kw_only=True)
class Card(FakeDevice):
    """Measures 20 us, whatever it is given, and does with it what ``CudaDevice`` does."""

    kind: Kind = Kind.MEASURED

    def time(self, compiled: Any, legal: Legal, problem: GemmProblem) -> Outcome:
        timing = Timing(kind=self.kind, us=20.0, low_us=19.0, high_us=21.0, evidence={"samples": 40})
        return Outcome(status=Status.OK, timing=with_simulation(timing, compiled, legal, problem, self))


@pytest.fixture(scope="module")
def legal() -> Legal:
    found = legalize(KernelConfigSm100a.parse("mma_tiler_mn=128x128"), PROBLEM, SM100A)
    assert isinstance(found, Legal)
    return found


@pytest.fixture(scope="module")
def compiled(legal: Legal) -> CompiledKernel:
    return build(legal.config, PROBLEM.problem_class, SM100A)


def evaluated(device: Device, compiled: CompiledKernel, legal: Legal) -> dict[str, Any]:
    candidate = Candidate(number=0, config=legal.config, legal=legal, origin=Origin.SAMPLED)
    result = CompileResult(status=Status.OK, compiled=compiled)
    trial = evaluate(candidate, result, PROBLEM, device)
    assert trial.ok and trial.us == (20.0 if device.kind is Kind.MEASURED else trial.us)
    return trial.evidence


def test_measured_trial_holds_the_simulated_time_and_the_ratio(
    compiled: CompiledKernel, legal: Legal
) -> None:
    evidence = evaluated(Card(), compiled, legal)
    there = simulate(compiled, legal.config, PROBLEM, CHIP)
    assert evidence["simulated_us"] == pytest.approx(there.us, abs=1e-4)
    assert evidence["simulated_low_us"] == pytest.approx(there.low_us, abs=1e-4)
    assert evidence["simulated_high_us"] == pytest.approx(there.high_us, abs=1e-4)
    assert evidence["measured_over_simulated"] == pytest.approx(20.0 / there.us, abs=1e-4)
    assert evidence["samples"] == 40


def test_simulated_trial_and_other_kernels_hold_none(compiled: CompiledKernel, legal: Legal) -> None:
    assert "simulated_us" not in evaluated(Card(kind=Kind.SIMULATED), compiled, legal)
    timing = Timing(kind=Kind.MEASURED, us=20.0, low_us=19.0, high_us=21.0)
    assert with_simulation(timing, compiled, legal, PROBLEM, Card(arch=SM90A, name="h200")) is timing


def test_kernel_without_simulated_time_says_why(
    compiled: CompiledKernel, legal: Legal, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = Outcome(status=Status.UNSUPPORTED, reason="no simulated time: PTX line 7")
    monkeypatch.setattr("tuner.simulated_device.simulated_outcome", lambda *_: refused)
    evidence = evaluated(Card(), compiled, legal)
    assert evidence["simulated"] == refused.reason and "simulated_us" not in evidence


def test_a_later_time_has_its_own_ratio() -> None:
    first = {
        "simulated_us": 16.0,
        "simulated_low_us": 15.0,
        "simulated_high_us": 18.0,
        "measured_over_simulated": 1.25,
    }
    assert against({**first, "samples": 40}, 24.0) == {**first, "measured_over_simulated": 1.5}
    assert against({"samples": 40}, 24.0) == {}
