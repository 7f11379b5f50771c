"""The record of a candidate before anything is done with it, and of those with which nothing is done."""

from __future__ import annotations

import dataclasses
import datetime
from typing import TYPE_CHECKING, Any

from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal, Rejection
from tuner.search.prefilter import PREFILTER
from tuner.trials.candidate import Candidate
from tuner.trials.outcome import Origin, Status, Trial

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel
    from tuner.devices.device import Device


def illegal_trial(config: KernelConfig, rejection: Rejection, problem: Problem, device: Device) -> Trial:
    """The record of a point that a rule or the prefilter rejects; it has no number among the candidates: -1."""
    return dataclasses.replace(
        blank_trial(problem, device.name, device.arch, config),
        status=Status.FILTERED if rejection.rule == PREFILTER else Status.ILLEGAL,
        reason=f"{rejection.rule}: {rejection.reason}",
    )


def blamed_trial(candidate: Candidate, reason: str, problem: Problem, device: Device) -> Trial:
    """The record of a candidate that is not run again, for ``reason``."""
    return dataclasses.replace(
        trial_of(candidate, problem, device),
        status=Status.FAILED,
        reason=reason,
        finished=utc_now(),
    )


def trial_of(candidate: Candidate, problem: Problem, device: Device) -> Trial:
    """What is known of a candidate before anything is done with it."""
    return dataclasses.replace(
        blank_trial(problem, device.name, device.arch, candidate.config),
        number=candidate.number,
        resolved=candidate.resolved,
        origin=candidate.origin,
        seed=candidate.seed,
        legal_seconds=candidate.seconds,
    )


def blank_trial(problem: Problem, device_name: str, arch: Arch, config: KernelConfig) -> Trial:
    return Trial(
        number=-1,
        op=problem.operator,
        problem=str(problem),
        options=problem.options,
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
