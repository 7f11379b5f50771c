"""Compilations, and simulated checks and times, by the hosts of a cluster: in place of ``CompilePool`` and
``CheckPool``."""

from __future__ import annotations

import dataclasses
import time
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_space.core.errors import InputError
from tuner.fleet.fleet import Fleet
from tuner.fleet.host import Built, compile_there, simulate_there
from tuner.fleet.identity import COMPILE, SIMULATE
from tuner.fleet.packed import Packed
from tuner.trials.outcome import Outcome, Status

if TYPE_CHECKING:
    from kernel_space.core.arch import Arch
    from kernel_space.core.config import KernelConfig
    from kernel_space.core.problem import ProblemClass
    from tuner.compile.worker import CompileResult


class FleetPool:
    """``stages.compile.Pool``. What hosts build is kept in the build cache of this machine, ``cache_dir`` or the
    user's; what lies there is not asked of them. A candidate that takes longer than ``timeout_s`` costs a process."""

    def __init__(self, fleet: Fleet, timeout_s: float, cache_dir: Path | None = None) -> None:
        from kernel_space.build.cache import default_cache_dir

        self._fleet, self._timeout_s = fleet, timeout_s
        self._cache_dir = (cache_dir or default_cache_dir()).absolute()

    def submit(self, config: KernelConfig, problem_class: ProblemClass, arch: Arch) -> Future[CompileResult]:
        """The future's exception is a bug, a cache that refuses, or the end of the cluster."""
        from kernel_space.build.build import cached_build
        from tuner.compile.worker import CompileResult

        start = time.perf_counter()
        if found := cached_build(config, problem_class, arch, cache_dir=self._cache_dir):
            future: Future[CompileResult] = Future()
            seconds = time.perf_counter() - start
            future.set_result(CompileResult(status=Status.OK, compiled=found, seconds=seconds))
            return future

        def keep(built: Built) -> CompileResult:
            return self._kept(built, config, problem_class, arch)

        return self._fleet.submit(
            compile_there,
            *(config, problem_class, arch, self._timeout_s),
            offer=COMPILE,
            finish=keep,
            lost=lambda reason: CompileResult(status=Status.COMPILE_CRASHED, reason=reason),
        )

    def _kept(
        self, built: Built, config: KernelConfig, problem_class: ProblemClass, arch: Arch
    ) -> CompileResult:
        """Raises ``InputError`` for what is not what was asked for."""
        from kernel_space.build.build import cached_build
        from kernel_space.build.key import build_key
        from tuner.compile.worker import CompileResult

        compiled = None
        if built.packed is not None:
            if built.packed.key == build_key(config, problem_class, arch):
                built.packed.unpack(self._cache_dir)
                compiled = cached_build(config, problem_class, arch, cache_dir=self._cache_dir)
            if compiled is None:
                raise InputError(f"{built.host} must build what it is asked for, it sent another kernel")
        return CompileResult(
            status=built.status,
            reason=built.reason,
            compiled=compiled,
            seconds=built.seconds,
            host=built.host,
        )


class FleetChecks:
    """``machine_check.Tasks``: of tasks that have a ``compiled`` kernel, which travels with each."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def submit(self, task: Any) -> Future[Any]:
        """The future raises what ``CheckPool``'s does: a host that is lost is no verdict."""
        return self._fleet.submit(
            simulate_there, task, Packed.of(task.compiled), offer=SIMULATE, finish=_with_host
        )


def _with_host(answer: tuple[str, Any]) -> Any:
    """An estimate says which host made it; a verdict is kept with the kernel, whoever found it."""
    host, found = answer
    if not isinstance(found, Outcome) or found.timing is None:
        return found
    evidence = {**found.timing.evidence, "host": host}
    return dataclasses.replace(found, timing=dataclasses.replace(found.timing, evidence=evidence))
