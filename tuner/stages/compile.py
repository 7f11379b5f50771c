"""Compile: a candidate by the pool; and kernels of earlier runs again, from the build cache."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import ProblemClass
from kernel_space.core.rules import Legal, legalize
from tuner.search.trial_of import build_record
from tuner.stages.stage import Job
from tuner.trials.outcome import Status, Trial

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel
    from tuner.compile.pool import CompileResult
    from tuner.stages.run import Run


class Pool(Protocol):
    """What a tune needs of ``CompilePool``; a result is a value whatever happens to the worker."""

    def submit(
        self, config: KernelConfig, problem_class: ProblemClass, arch: Arch
    ) -> Future[CompileResult]: ...


class Compile:
    name = "compile"

    def start(self, run: Run, job: Job) -> Future[CompileResult]:
        job.compiling = run.ahead.pop(job.trial.resolved, None) or _submit(run, job.legal.config)
        return job.compiling

    def finish(self, job: Job, answer: CompileResult, seconds: float) -> Trial:
        job.compiled = answer.compiled
        return dataclasses.replace(
            job.trial,
            status=answer.status,
            reason=answer.reason,
            build=build_record(answer.compiled, job.legal) | host_record(answer),
            compile_seconds=answer.seconds,
        )


def host_record(answer: CompileResult) -> dict[str, str]:
    """Which host of a fleet compiled it; nothing where this machine did."""
    return {"compiled_on": answer.host} if answer.host else {}


def kernel_of(run: Run, trial: Trial) -> CompiledKernel | None:
    """The kernel of ``trial``; from the build cache when an earlier run compiled it. None if that fails now."""
    if trial.resolved not in run.compiled:
        if (result := _submit(run, trial.resolved_config).result()).compiled is None:
            return None
        run.compiled[trial.resolved] = result.compiled
    return run.compiled[trial.resolved]


def legal_of(run: Run, trial: Trial) -> Legal:
    if trial.resolved not in run.legals:
        legal = legalize(trial.resolved_config, run.problem, run.device.arch)
        if not isinstance(legal, Legal):
            raise AssertionError(f"the journal holds {trial.resolved}, which is not legal: {legal}")
        run.legals[trial.resolved] = legal
    return run.legals[trial.resolved]


def job_of(run: Run, trial: Trial) -> Job | None:
    """``trial`` with its kernel, to go on with; None when it cannot be rebuilt."""
    if (compiled := kernel_of(run, trial)) is None:
        return None
    return Job(trial=trial, legal=legal_of(run, trial), compiled=compiled)


def not_rebuilt(trial: Trial) -> Trial:
    return dataclasses.replace(trial, status=Status.COMPILE_FAILED, reason="cannot be rebuilt")


def _submit(run: Run, config: KernelConfig) -> Future[CompileResult]:
    return run.pool.submit(config, run.problem.problem_class, run.device.arch)
