"""Small stand-ins for the slow seams: a compile pool without a compiler, a device with a time of its own."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kernel_space.core.arch import SM100A, Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import ProblemClass
from kernel_space.core.rules import Legal
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tuner.devices.abilities import Abilities
from tuner.space.space import SearchSpace
from tuner.trials.answer import answered
from tuner.trials.outcome import Kind, Outcome, Status, Timing

CHECKS_ALL = Abilities(checks_every_candidate=True)
CARD = Abilities(checks_every_candidate=True, ranks_leaders=True)

Answer = concurrent.futures.Future[Outcome]


def compiled(config: KernelConfig) -> SimpleNamespace:
    """Looks like a ``CompiledKernel`` as far as the tuner looks at one."""
    digest = hashlib.sha256(str(config).encode()).hexdigest()
    return SimpleNamespace(
        config=str(config),
        key=digest,
        object_path=Path(digest) / "kernel.o",
        object_sha256=digest,
        cubin_sha256=digest,
        source_hash="source",
        dsl_version="4.8.1",
        variant="cu12",
        resources=SimpleNamespace(registers=128, spill_bytes=0),
    )


class FakePool:
    """Answers at once. ``verdict`` gives the status of a config; ``submitted`` counts how often each was asked."""

    def __init__(self, verdict: Callable[[KernelConfigSm100a], Status] = lambda config: Status.OK) -> None:
        self.verdict = verdict
        self.submitted: Counter[str] = Counter()

    def submit(
        self, config: KernelConfigSm100a, problem_class: ProblemClass, arch: Arch
    ) -> concurrent.futures.Future[Any]:
        self.submitted[str(config)] += 1
        status = self.verdict(config)
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        ok = status is Status.OK
        future.set_result(
            SimpleNamespace(
                status=status,
                reason="" if ok else f"made to be {status}",
                compiled=compiled(config) if ok else None,
                seconds=0.5,
                host="",
            )
        )
        return future


@dataclasses.dataclass(kw_only=True)
class FakeDevice:
    """Times a config by a hash of its print, so that the order is arbitrary but fixed; validates as it is told."""

    name: str = "b200"
    arch: Arch = SM100A
    sm_count: int = 148
    kind: Kind = Kind.SIMULATED
    judge: str = "fake"
    abilities: Abilities = Abilities()
    note: str = ""
    verdicts: dict[str, Status] = dataclasses.field(default_factory=dict)
    validated: list[str] = dataclasses.field(default_factory=list)
    timed: list[str] = dataclasses.field(default_factory=list)

    def begin(self) -> bool:
        return True

    def check(self, compiled: Any, legal: Legal, problem: GemmProblem) -> Answer:
        return answered(lambda: self.checked(legal))

    def check_full(self, compiled: Any, legal: Legal, problem: GemmProblem) -> Answer:
        raise AssertionError("asked of a device that checks no winner")

    def interleave(
        self, contenders: Any, problem: GemmProblem, options: Any
    ) -> concurrent.futures.Future[Any]:
        raise AssertionError("asked of a device that ranks no leaders")

    def time(self, compiled: Any, legal: Legal, problem: GemmProblem) -> Answer:
        return answered(lambda: self.found(legal))

    def checked(self, legal: Legal) -> Outcome:
        self.validated.append(str(legal.config))
        status = self.verdicts.get(str(legal.config), Status.OK)
        return Outcome(status=status, reason="" if status is Status.OK else "y[3,5] is 2, must be 1")

    def found(self, legal: Legal) -> Outcome:
        """Its time."""
        self.timed.append(str(legal.config))
        us = fake_us(str(legal.config))
        timing = Timing(kind=self.kind, us=us, low_us=us, high_us=us, evidence={"noise_us": 0.0})
        return Outcome(status=Status.OK, timing=timing)


def fake_us(resolved: str) -> float:
    """Between 10 and 20 us."""
    return 10 + int(hashlib.sha256(resolved.encode()).hexdigest()[:8], 16) / 2**32 * 10


def small_space(**choices: str) -> SearchSpace:
    """The real space with only the choices that are named and one of every other knob."""
    space = SearchSpace.load(GemmProblem.operator, SM100A)
    named = {name: tuple(text.split()) for name, text in choices.items()}
    others = {name: knob.choices[:1] for name, knob in space.knobs.items() if name not in named}
    return space.restrict({**others, **named})
