"""The stages of one candidate after it is known to be legal: compile (done by the pool), validate, time.

Expected failures become a status in the trial; an exception here is a bug and goes up.
"""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.rules import Legal, Rejection
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.devices.device import ChecksWinner, Device
from tuner.search.prefilter import PREFILTER
from tuner.space.candidate import Candidate
from tuner.trials.checked import THEN, Check, check_of
from tuner.trials.outcome import Origin, Outcome, Status, Trial

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel
    from tuner.compile.pool import CompileResult

PASSED = "passed"  # Trial.validation of a kernel whose results were checked


def evaluate(candidate: Candidate, compiled: CompileResult, problem: GemmProblem, device: Device) -> Trial:
    """The trial of ``candidate`` from what its compilation gave: timed, and checked before that if the device is
    one that checks every candidate."""
    trial = dataclasses.replace(
        _trial_of(candidate, problem, device),
        status=compiled.status,
        reason=compiled.reason,
        build=build_record(compiled.compiled, candidate.legal),
        compile_seconds=compiled.seconds,
    )
    if trial.status is Status.OK and device.eager_validation:
        trial = validate(trial, compiled.compiled, candidate.legal, problem, device)
    if trial.status is Status.OK:
        trial = _time(trial, compiled.compiled, candidate.legal, problem, device)
    return dataclasses.replace(trial, finished=utc_now())


def validate(
    trial: Trial, compiled: CompiledKernel, legal: Legal, problem: GemmProblem, device: Device
) -> Trial:
    """``trial`` with the device's verdict on the kernel's results."""
    outcome, seconds = _stopwatch(lambda: device.validate(compiled, legal, problem))
    passed = outcome.reason or PASSED
    return dataclasses.replace(
        trial,
        status=outcome.status,
        reason="" if outcome.ok else outcome.reason,
        validation=passed if outcome.ok else f"{outcome.status}: {outcome.reason}",
        validate_seconds=seconds,
        finished=utc_now(),
    )


def validate_full(
    trial: Trial, compiled: CompiledKernel, legal: Legal, problem: GemmProblem, device: ChecksWinner
) -> Trial:
    """``trial``, already validated, with the device's verdict on the real problem."""
    outcome, seconds = _stopwatch(lambda: device.validate_full(compiled, legal, problem))
    said = outcome.reason if outcome.ok else f"{outcome.status}: {outcome.reason}"
    return dataclasses.replace(
        trial,
        status=outcome.status,
        reason="" if outcome.ok else outcome.reason,
        validation=f"{trial.validation.partition(THEN)[0]}{THEN}{said}",
        validate_seconds=trial.validate_seconds + seconds,
        finished=utc_now(),
    )


def is_checked(trial: Trial) -> bool:
    """Has a device said that the results are right?"""
    return trial.ok and check_of(trial.validation) is not Check.NONE


def illegal_trial(config: KernelConfig, rejection: Rejection, problem: GemmProblem, device: Device) -> Trial:
    """The record of a point that a rule or the prefilter rejects; it has no number among the candidates: -1."""
    return dataclasses.replace(
        blank_trial(problem, device.name, device.arch, config),
        status=Status.FILTERED if rejection.rule == PREFILTER else Status.ILLEGAL,
        reason=f"{rejection.rule}: {rejection.reason}",
    )


def blamed_trial(candidate: Candidate, reason: str, problem: GemmProblem, device: Device) -> Trial:
    """The record of a candidate that is not run again, for ``reason``."""
    return dataclasses.replace(
        _trial_of(candidate, problem, device),
        status=Status.FAILED,
        reason=reason,
        finished=utc_now(),
    )


def _trial_of(candidate: Candidate, problem: GemmProblem, device: Device) -> Trial:
    """What is known of a candidate before anything is done with it."""
    return dataclasses.replace(
        blank_trial(problem, device.name, device.arch, candidate.config),
        number=candidate.number,
        resolved=candidate.resolved,
        origin=candidate.origin,
        seed=candidate.seed,
        legal_seconds=candidate.seconds,
    )


def blank_trial(problem: GemmProblem, device_name: str, arch: Arch, config: KernelConfig) -> Trial:
    return Trial(
        number=-1,
        problem=str(problem),
        lora_dtype=problem.lora_dtype,
        out_dtype=problem.out_dtype,
        device=device_name,
        arch=arch.name,
        config=str(config),
        resolved="",
        status=Status.FAILED,
        origin=Origin.SAMPLED,
    )


def build_record(compiled: CompiledKernel | None, legal: Legal) -> dict[str, Any]:
    """What a report and a dispatch row want to know of a compiled kernel, as scalars."""
    budget = {"smem_bytes": legal.budget.smem_bytes, "tmem_columns": legal.budget.tmem_columns_allocated}
    if compiled is None:
        return budget
    return {
        **budget,
        "registers": compiled.resources.registers,
        "spill_bytes": compiled.resources.spill_bytes,
        "cubin_sha256": compiled.cubin_sha256,
        "source_hash": compiled.source_hash,
        "dsl_version": compiled.dsl_version,
        "variant": compiled.variant,
    }


def utc_now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _time(
    trial: Trial, compiled: CompiledKernel, legal: Legal, problem: GemmProblem, device: Device
) -> Trial:
    outcome, seconds = _stopwatch(lambda: device.time(compiled, legal, problem))
    trial = dataclasses.replace(trial, status=outcome.status, reason=outcome.reason, time_seconds=seconds)
    if not outcome.ok:
        return trial
    if outcome.timing is None:
        raise AssertionError(f"device {device.name} says OK without a time for {trial.resolved}")
    return trial.with_timing(outcome.timing)


def _stopwatch(stage: Callable[[], Outcome]) -> tuple[Outcome, float]:
    start = time.perf_counter()
    outcome = stage()
    return outcome, round(time.perf_counter() - start, 6)
