"""A device class without a card: times from the PTX machine's clock, numbers from the PTX machine.

Both run in worker processes (``check_worker``): a candidate that brings the machine down, or keeps it busy for ever,
costs one trial and not the tune.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from kernel_space.core.arch import Arch
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from tuner.devices.abilities import Abilities
from tuner.devices.device import Device
from tuner.devices.select import device_class_of, has_simulator
from tuner.simulated.check_worker import CheckDied, CheckHung, CheckPool
from tuner.simulated.constants.hash import simulation_hash
from tuner.simulated.machine_check import CANDIDATE, FULL, STATUS, MachineChecker, Task, run_task
from tuner.trials.answer import answered, then
from tuner.trials.outcome import Kind, Outcome, Status

if TYPE_CHECKING:
    from concurrent.futures import Future

    from kernel_space.build.build import CompiledKernel
    from kernel_space.core.rules import Legal
    from tuner.card.samples.samples import Samples
    from tuner.card.worker.bench import FinalsOptions

LIMIT_S = 120.0  # of one estimate, which takes a tenth of a second
ABILITIES = Abilities(at_once=True, checks_winner=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """What a simulated time needs to know of a device, and what a process can be sent."""

    name: str
    arch: Arch
    sm_count: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimeTask:
    """One estimate, as a worker does it."""

    compiled: CompiledKernel
    legal: Legal
    problem: Problem
    chip: Chip
    limit_s: float

    def run(self) -> Outcome:
        return simulated_outcome(self.compiled, self.legal, self.problem, self.chip)


def simulated_outcome(compiled: CompiledKernel, legal: Legal, problem: Problem, chip: Chip) -> Outcome:
    """OK with a ``SIMULATED`` timing, UNSUPPORTED for PTX or host code that the clock does not know, or the fault of
    the program that the clocked run found."""
    from kernel_space.launch.capture import CaptureError
    from kernel_space.machine.values.faults import Fault, Unsupported
    from tuner.simulated.time import simulate_time

    try:
        return Outcome(status=Status.OK, timing=simulate_time(compiled, legal, problem, chip))
    except (Unsupported, CaptureError, InputError) as error:
        return Outcome(status=Status.UNSUPPORTED, reason=f"no simulated time: {error}")
    except Fault as fault:
        status = STATUS.get(fault.status) or Status[fault.status]
        return Outcome(status=status, reason=f"clocked run: {fault.reason}")


def outcome_in_a_worker(compiled: CompiledKernel, legal: Legal, problem: Problem, chip: Chip) -> Outcome:
    """``simulated_outcome``, whose run of the object's host code may take its process with it: not this one."""
    task = TimeTask(compiled=compiled, legal=legal, problem=problem, chip=chip, limit_s=LIMIT_S)
    return _outcome(_pool().submit(task))


@functools.cache
def _pool() -> CheckPool:
    return CheckPool(1, f"{run_task.__module__}:{run_task.__name__}")


def _outcome(future: Future[Outcome]) -> Outcome:
    """What a worker found; waits for it."""
    try:
        return future.result()
    except CheckHung as error:
        return Outcome(status=Status.TIMED_OUT, reason=str(error))
    except CheckDied as error:
        return Outcome(status=Status.FAILED, reason=str(error))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulatedDevice:
    """``b200`` or ``b300`` as the machine sees it; it never meets the hardware.

    ``judge`` covers the clock with its constants and what checks the numbers. Candidates are checked lazily.
    """

    name: str
    arch: Arch
    sm_count: int
    note: str = ""
    kind: Kind = dataclasses.field(default=Kind.SIMULATED, init=False)
    abilities: Abilities = dataclasses.field(default=ABILITIES, init=False)
    checker: MachineChecker = dataclasses.field(default_factory=MachineChecker, compare=False, repr=False)

    @classmethod
    def of_class(cls, name: str, *, sm_count: int | None = None, note: str = "") -> Self:
        known = device_class_of(name)
        return cls(name=name, arch=known.arch, sm_count=sm_count or known.sm_count, note=note)

    @property
    def judge(self) -> str:
        return simulated_judge()

    def begin(self) -> bool:
        return True

    def time(self, compiled: CompiledKernel, legal: Legal, problem: Problem) -> Future[Outcome]:
        chip = Chip(name=self.name, arch=self.arch, sm_count=self.sm_count)
        task = TimeTask(compiled=compiled, legal=legal, problem=problem, chip=chip, limit_s=LIMIT_S)
        return then(self.checker.pool.submit(task), _outcome)

    def check(self, compiled: CompiledKernel, legal: Legal, problem: Problem) -> Future[Outcome]:
        return self.checker.check(_check(CANDIDATE, compiled, legal, problem))

    def check_full(self, compiled: CompiledKernel, legal: Legal, problem: Problem) -> Future[Outcome]:
        return self.checker.check(_check(FULL, compiled, legal, problem))

    def interleave(
        self, contenders: Sequence[tuple[CompiledKernel, Legal]], problem: Problem, options: FinalsOptions
    ) -> Future[list[Samples] | Outcome]:
        """A clock that is the same for all has nothing to gain from rounds."""
        return answered(lambda: Outcome(status=Status.UNSUPPORTED, reason=f"{self.name} is simulated"))


@functools.cache
def simulated_judge() -> str:
    """What simulated times and verdicts of today depend on besides the kernel and its operator's inputs and oracle."""
    from kernel_space.check.version import machine_version

    return f"{simulation_hash()} check {machine_version()[:16]}"


def models_of(device: Device) -> dict[Kind, str]:
    """What rows of ``device`` that nobody measured depend on today besides kernel and operator, by what they are."""
    models: dict[Kind, str] = {}
    if has_simulator(device.arch):
        models[Kind.SIMULATED] = device.judge if device.kind is Kind.SIMULATED else simulated_judge()
    return models


def _check(kind: str, compiled: CompiledKernel, legal: Legal, problem: Problem) -> Task:
    return Task(kind=kind, compiled=compiled, config=legal.config, problem=problem)
