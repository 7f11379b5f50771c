"""The steps made with a candidate: what each failure becomes, and in which order a device is asked."""

from __future__ import annotations

import math
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_space.core.arch import SM100A
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tests.fakes import CHECKS_ALL, FakeDevice, compiled, fake_us
from tuner.search.trial_of import trial_of
from tuner.stages.check import Check
from tuner.stages.compile import Compile
from tuner.stages.stage import Job, carry
from tuner.stages.time import Time
from tuner.trials.answer import answered
from tuner.trials.candidate import Candidate
from tuner.trials.outcome import Kind, Origin, Outcome, Status, Timing, Trial

PROBLEM = GemmProblem.parse("17,3840,3072,64", lora_dtype="bf16", out_dtype="bf16")


@pytest.fixture(scope="module")
def candidate() -> Candidate:
    config = KernelConfigSm100a(mma_tiler_mn=(128, 64), cluster_shape_mn=(1, 1))
    legal = legalize(config, PROBLEM, SM100A)
    assert isinstance(legal, Legal)
    return Candidate(number=7, config=config, legal=legal, origin=Origin.NEIGHBOUR, seed=5, seconds=0.25)


def done(candidate: Candidate, status: Status = Status.OK, reason: str = "") -> SimpleNamespace:
    kernel = compiled(candidate.legal.config) if status is Status.OK else None
    return SimpleNamespace(status=status, reason=reason, compiled=kernel, seconds=0.75, host="")


def evaluate(
    candidate: Candidate, compiled: SimpleNamespace, problem: GemmProblem, device: FakeDevice
) -> Trial:
    """``candidate``, whose compilation gave ``compiled``, through the steps that a tune on ``device`` makes."""
    run = SimpleNamespace(
        problem=problem,
        device=device,
        ahead={},
        pool=SimpleNamespace(submit=lambda *_: answered(lambda: compiled)),
    )
    check = [Check()] if device.abilities.checks_every_candidate else []
    job = Job(trial=trial_of(candidate, problem, device), legal=candidate.legal)
    return carry(run, job, [Compile(), *check, Time()]).result(timeout=0)


def test_good_candidate_is_one_flat_record(candidate: Candidate) -> None:
    trial = evaluate(candidate, done(candidate), PROBLEM, FakeDevice())
    assert trial.ok and (trial.number, trial.seed, trial.origin) == (7, 5, Origin.NEIGHBOUR)
    assert (trial.problem, trial.options, trial.device, trial.arch) == (
        "17,3840,3072,64",
        {"lora_dtype": "bf16", "out_dtype": "bf16"},
        "b200",
        "sm_100a",
    )
    assert trial.subject == PROBLEM and trial.resolved_config == candidate.legal.config
    assert KernelConfigSm100a.parse(trial.config) == candidate.config
    assert trial.kind is Kind.SIMULATED and math.isclose(trial.us or 0, fake_us(candidate.resolved))
    assert (trial.legal_seconds, trial.compile_seconds) == (0.25, 0.75)
    assert trial.build["registers"] == 128
    assert trial.build["smem_bytes"] == candidate.legal.budget.smem.total


@pytest.mark.parametrize(
    "status", [Status.COMPILE_FAILED, Status.COMPILE_TIMEOUT, Status.COMPILE_CRASHED, Status.FAILED]
)
def test_failed_compilation_is_recorded_and_the_device_left_alone(
    candidate: Candidate, status: Status
) -> None:
    device = FakeDevice(abilities=CHECKS_ALL)
    trial = evaluate(candidate, done(candidate, status, "ptxas: line 5: no"), PROBLEM, device)
    assert (trial.status, trial.reason, trial.us) == (status, "ptxas: line 5: no", None)
    assert not device.validated and not device.timed and not trial.ok
    assert "cubin_sha256" not in trial.build


def test_eager_device_checks_before_it_times(candidate: Candidate) -> None:
    good = FakeDevice(abilities=CHECKS_ALL, kind=Kind.MEASURED)
    trial = evaluate(candidate, done(candidate), PROBLEM, good)
    assert trial.validation == "passed" and trial.kind is Kind.MEASURED
    bad = FakeDevice(abilities=CHECKS_ALL, verdicts={candidate.resolved: Status.WRONG_RESULT})
    trial = evaluate(candidate, done(candidate), PROBLEM, bad)
    assert (trial.status, trial.us, bad.timed) == (Status.WRONG_RESULT, None, [])


def test_lazy_device_times_without_checking(candidate: Candidate) -> None:
    device = FakeDevice(verdicts={candidate.resolved: Status.WRONG_RESULT})
    trial = evaluate(candidate, done(candidate), PROBLEM, device)
    assert trial.ok and trial.validation == "" and not device.validated


def test_late_verdict_keeps_the_time_and_takes_the_status(candidate: Candidate) -> None:
    device = FakeDevice(verdicts={candidate.resolved: Status.WRONG_RESULT})
    timed = evaluate(candidate, done(candidate), PROBLEM, device)
    job = Job(trial=timed, legal=candidate.legal, compiled=compiled(candidate.legal.config))
    checked = carry(SimpleNamespace(problem=PROBLEM, device=device), job, [Check()]).result(timeout=0)
    assert checked.finished.endswith("+00:00")
    assert (checked.status, checked.reason) == (Status.WRONG_RESULT, "y[3,5] is 2, must be 1")
    assert checked.validation == "wrong_result: y[3,5] is 2, must be 1"
    assert checked.us == timed.us and not checked.ok


def test_device_that_cannot_time_is_an_outcome(candidate: Candidate) -> None:
    device = FakeDevice()
    device.found = lambda _: Outcome(status=Status.TIMED_OUT, reason="no answer in 10 s")  # type: ignore[method-assign]
    trial = evaluate(candidate, done(candidate), PROBLEM, device)
    assert (trial.status, trial.reason, trial.us) == (Status.TIMED_OUT, "no answer in 10 s", None)


def test_ok_without_a_time_is_a_bug_of_the_device(candidate: Candidate) -> None:
    device = FakeDevice()
    device.found = lambda _: Outcome(status=Status.OK)  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="OK without a time"):
        evaluate(candidate, done(candidate), PROBLEM, device)


def test_bug_in_a_device_goes_up(candidate: Candidate) -> None:
    device = FakeDevice()

    def broken(*_: object) -> Outcome:
        raise ZeroDivisionError

    device.time = broken  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        evaluate(candidate, done(candidate), PROBLEM, device)


def test_bug_before_a_device_s_answer_goes_up_too(candidate: Candidate) -> None:
    """``start`` itself raises, not its future; in the middle of the steps no thread is there to see that."""
    device = FakeDevice()
    device.time = lambda *_: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        evaluate(candidate, done(candidate), PROBLEM, device)


def test_ctrl_c_in_the_middle_of_a_candidate_goes_up(candidate: Candidate) -> None:
    device = FakeDevice(abilities=CHECKS_ALL)

    def interrupted(_: Legal) -> Outcome:
        raise KeyboardInterrupt

    for name in ("checked", "found"):
        setattr(device, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            evaluate(candidate, done(candidate), PROBLEM, device)
        delattr(device, name)


def test_each_step_begins_when_the_one_before_is_done_by_whoever_did_it(candidate: Candidate) -> None:
    """Compiler, check and clock answer from threads of their own, the last long after the first."""
    futures = {name: Future() for name in ("compile", "check", "time")}
    begun: list[tuple[str, str]] = []

    def asked(name: str) -> Future[Any]:
        begun.append((name, threading.current_thread().name))
        return futures[name]

    device = SimpleNamespace(
        check=lambda *_: asked("check"), time=lambda *_: asked("time"), name="b200", arch=SM100A
    )
    run = SimpleNamespace(
        problem=PROBLEM, device=device, ahead={}, pool=SimpleNamespace(submit=lambda *_: asked("compile"))
    )
    job = Job(trial=trial_of(candidate, PROBLEM, device), legal=candidate.legal)
    whole = carry(run, job, [Compile(), Check(), Time()])
    us = fake_us("x")
    timing = Timing(kind=Kind.SIMULATED, us=us, low_us=us, high_us=us)
    answers = {
        "compile": done(candidate),
        "check": Outcome(status=Status.OK),
        "time": Outcome(status=Status.OK, timing=timing),
    }
    for name, answer in answers.items():
        assert begun[-1][0] == name and not whole.done()
        worker = threading.Thread(target=futures[name].set_result, args=(answer,), name=f"did {name}")
        worker.start()
        worker.join()
    trial = whole.result(timeout=0)
    assert (trial.us, trial.validation, trial.resolved) == (us, "passed", candidate.resolved)
    here = threading.current_thread().name
    assert begun == [("compile", here), ("check", "did compile"), ("time", "did check")]
