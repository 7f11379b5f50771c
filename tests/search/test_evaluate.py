"""The stages after legality: what each failure becomes, and in which order a device is asked."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from kernel_space.core.arch import SM100A
from kernel_space.core.rules import Legal, Rejection, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tests.fakes import FakeDevice, compiled, fake_us
from tuner.search.evaluate import evaluate, illegal_trial, validate
from tuner.search.search import Candidate
from tuner.trials.outcome import Kind, Origin, Outcome, Status

PROBLEM = GemmProblem.parse("17,3840,3072,64", lora_dtype="bf16", out_dtype="bf16")


@pytest.fixture(scope="module")
def candidate() -> Candidate:
    config = KernelConfigSm100a(mma_tiler_mn=(128, 64), cluster_shape_mn=(1, 1))
    legal = legalize(config, PROBLEM, SM100A)
    assert isinstance(legal, Legal)
    return Candidate(number=7, config=config, legal=legal, origin=Origin.NEIGHBOUR, seed=5, seconds=0.25)


def done(candidate: Candidate, status: Status = Status.OK, reason: str = "") -> SimpleNamespace:
    kernel = compiled(candidate.legal.config) if status is Status.OK else None
    return SimpleNamespace(status=status, reason=reason, compiled=kernel, seconds=0.75)


def test_good_candidate_is_one_flat_record(candidate: Candidate) -> None:
    trial = evaluate(candidate, done(candidate), PROBLEM, FakeDevice())
    assert trial.ok and (trial.number, trial.seed, trial.origin) == (7, 5, Origin.NEIGHBOUR)
    assert (trial.problem, trial.lora_dtype, trial.device, trial.arch) == (
        "17,3840,3072,64",
        "bf16",
        "b200",
        "sm_100a",
    )
    assert trial.gemm_problem == PROBLEM and trial.resolved_config == candidate.legal.config
    assert KernelConfigSm100a.parse(trial.config) == candidate.config
    assert trial.kind is Kind.SIMULATED and math.isclose(trial.us or 0, fake_us(candidate.resolved))
    assert (trial.legal_seconds, trial.compile_seconds) == (0.25, 0.75)
    assert trial.build["registers"] == 128
    assert trial.build["smem_bytes"] == candidate.legal.budget.smem.total
    assert trial.finished.endswith("+00:00")


@pytest.mark.parametrize(
    "status", [Status.COMPILE_FAILED, Status.COMPILE_TIMEOUT, Status.COMPILE_CRASHED, Status.FAILED]
)
def test_failed_compilation_is_recorded_and_the_device_left_alone(
    candidate: Candidate, status: Status
) -> None:
    device = FakeDevice(eager_validation=True)
    trial = evaluate(candidate, done(candidate, status, "ptxas: line 5: no"), PROBLEM, device)
    assert (trial.status, trial.reason, trial.us) == (status, "ptxas: line 5: no", None)
    assert not device.validated and not device.timed and not trial.ok
    assert "cubin_sha256" not in trial.build


def test_eager_device_checks_before_it_times(candidate: Candidate) -> None:
    good = FakeDevice(eager_validation=True, kind=Kind.MEASURED)
    trial = evaluate(candidate, done(candidate), PROBLEM, good)
    assert trial.validation == "passed" and trial.kind is Kind.MEASURED
    bad = FakeDevice(eager_validation=True, verdicts={candidate.resolved: Status.WRONG_RESULT})
    trial = evaluate(candidate, done(candidate), PROBLEM, bad)
    assert (trial.status, trial.us, bad.timed) == (Status.WRONG_RESULT, None, [])


def test_lazy_device_times_without_checking(candidate: Candidate) -> None:
    device = FakeDevice(verdicts={candidate.resolved: Status.WRONG_RESULT})
    trial = evaluate(candidate, done(candidate), PROBLEM, device)
    assert trial.ok and trial.validation == "" and not device.validated


def test_late_verdict_keeps_the_time_and_takes_the_status(candidate: Candidate) -> None:
    device = FakeDevice(verdicts={candidate.resolved: Status.WRONG_RESULT})
    timed = evaluate(candidate, done(candidate), PROBLEM, device)
    checked = validate(timed, compiled(candidate.legal.config), candidate.legal, PROBLEM, device)
    assert (checked.status, checked.reason) == (Status.WRONG_RESULT, "y[3,5] is 2, must be 1")
    assert checked.validation == "wrong_result: y[3,5] is 2, must be 1"
    assert checked.us == timed.us and not checked.ok


def test_device_that_cannot_time_is_an_outcome(candidate: Candidate) -> None:
    device = FakeDevice()
    device.time = lambda *_: Outcome(status=Status.TIMED_OUT, reason="no answer in 10 s")  # type: ignore[method-assign]
    trial = evaluate(candidate, done(candidate), PROBLEM, device)
    assert (trial.status, trial.reason, trial.us) == (Status.TIMED_OUT, "no answer in 10 s", None)


def test_ok_without_a_time_is_a_bug_of_the_device(candidate: Candidate) -> None:
    device = FakeDevice()
    device.time = lambda *_: Outcome(status=Status.OK)  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="OK without a time"):
        evaluate(candidate, done(candidate), PROBLEM, device)


def test_bug_in_a_device_goes_up(candidate: Candidate) -> None:
    device = FakeDevice()

    def broken(*_: object) -> Outcome:
        raise ZeroDivisionError

    device.time = broken  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        evaluate(candidate, done(candidate), PROBLEM, device)


def test_illegal_point_names_its_rule(candidate: Candidate) -> None:
    trial = illegal_trial(
        candidate.config, Rejection("epi_tile", "128 does not divide 64"), PROBLEM, FakeDevice()
    )
    assert (trial.number, trial.status, trial.resolved) == (-1, Status.ILLEGAL, "")
    assert trial.reason == "epi_tile: 128 does not divide 64"
