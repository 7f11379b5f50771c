"""What a search takes from a folder of objects (``manifest.py``): its candidates, and the objects in place of a
pool."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterable
from typing import Any

from kernel_space.build.build import cached_build
from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.plain_files import AnyPath, below
from kernel_space.core.problem import Problem, ProblemClass
from kernel_space.core.registry import parse_config
from kernel_space.core.rules import Legal, Rejection, legalize
from tuner.compile.manifest import OBJECTS, Entry
from tuner.compile.worker import CompileResult
from tuner.trials.candidate import Candidate, Listed
from tuner.trials.outcome import Status


class GivenCandidates(Listed):
    """The candidates of one problem in a manifest; without those that are not legal any more.

    ``Manifest.adopt`` must come first: legality reads sizes.
    """

    def __init__(self, entries: Iterable[Entry], problem: Problem, arch: Arch) -> None:
        rejected: dict[KernelConfig, Rejection] = {}
        legal_ones: list[Candidate] = []
        for entry in entries:
            config = parse_config(problem.operator, arch, entry.config)
            legal = legalize(config, problem, arch)
            if isinstance(legal, Legal):
                number = len(legal_ones)
                legal_ones.append(
                    Candidate(number=number, config=config, legal=legal, origin=entry.origin, seed=entry.seed)
                )
            else:
                rejected[config] = legal
        super().__init__(legal_ones, rejected)


class ObjectsPool:
    """``loop.Pool`` that answers from the folder; what is not there it passes on to ``otherwise``, if there is one."""

    def __init__(
        self, folder: AnyPath, entries: Iterable[Entry] = (), *, otherwise: Any | None = None
    ) -> None:
        self._objects = below(folder, OBJECTS)  # somebody else's, perhaps: it is only read
        self._failed = {entry.resolved: entry for entry in entries if entry.status is not Status.OK}
        self._otherwise = otherwise

    def submit(
        self, config: KernelConfig, problem_class: ProblemClass, arch: Arch
    ) -> concurrent.futures.Future[CompileResult]:
        found = cached_build(config, problem_class, arch, cache_dir=self._objects, foreign=True)
        if found is None and self._otherwise is not None:
            return self._otherwise.submit(config, problem_class, arch)
        future: concurrent.futures.Future[CompileResult] = concurrent.futures.Future()
        future.set_result(CompileResult(status=Status.OK, compiled=found) if found else self._missing(config))
        return future

    def _missing(self, config: KernelConfig) -> CompileResult:
        if entry := self._failed.get(str(config)):
            return CompileResult(status=entry.status, reason=entry.reason, seconds=entry.seconds)
        # Transient: the next visit may bring it.
        return CompileResult(status=Status.COMPILE_CRASHED, reason="its object is missing or damaged")
