"""``CudaDevice``: candidates judged by a card that this machine has. Its times are measured."""

from __future__ import annotations

import dataclasses
import functools
import secrets
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol, TypeVar

from kernel_space.core.arch import Arch
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator_of
from kernel_space.core.signature import DTYPE_BYTES
from tuner.card.card_worker import CandidateFault, CardWorker
from tuner.card.judging import Judging
from tuner.card.ragged import ragged_problems
from tuner.card.samples.samples import Samples
from tuner.card.worker.bench import PROTOCOL, QUICK, FinalsOptions, sets_needed
from tuner.card.worker.candidate import Case, Loadable
from tuner.card.worker.chains import chain_bytes
from tuner.card.worker.check import CHECK_VERSION, CaseReport, describe
from tuner.card.worker.telemetry import Telemetry
from tuner.devices.abilities import Abilities
from tuner.devices.classes import DEVICE_CLASSES, Card, DeviceClass, class_of
from tuner.devices.disagreement import with_simulation
from tuner.trials.answer import answered
from tuner.trials.outcome import Kind, Outcome, Status

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel
    from kernel_space.core.config import KernelConfig
    from kernel_space.core.rules import Legal

Answer = TypeVar("Answer")

REPEATS = 8  # of every candidate
WINNER_REPEATS = 50  # a race that shows once in twenty launches is found with 92 %
# Of an oracle that does not say what it takes: values, and all on the way there.
INPUT_COPIES, OUTPUT_COPIES = 4, 12
SPARE_BYTES = 2 << 30  # context, kernels, graphs, temporaries
ABILITIES = Abilities(checks_every_candidate=True, checks_winner=True, ranks_leaders=True)


class Asked(Protocol):
    """``answered``, by whichever thread."""

    def __call__(self, call: Callable[[], Answer]) -> Future[Answer]: ...


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CudaDevice:
    """Card ``card`` of class ``name``. The worker starts when something is first asked of the card.

    ``judge``: everything but the kernel that a verdict or a time depends on: card, driver, clocks as found, protocol
    of timing, version of the check. ``CardLost`` (an ``InputError``) comes from everything that asks the card.

    The card has one worker, which does one thing at a time: the caller's thread asks it, so that whoever is interrupted
    takes the request back with it. That of another host is asked by threads that ``asked`` has.
    """

    name: str
    arch: Arch
    sm_count: int
    card: Card
    worker: Judging = dataclasses.field(compare=False, repr=False)
    kind: Kind = dataclasses.field(default=Kind.MEASURED, init=False)
    abilities: Abilities = ABILITIES
    note: str = ""
    told_driver: str = ""  # by the host of a card that is not here
    asked: Asked = dataclasses.field(default=answered, compare=False, repr=False)

    @classmethod
    def of_card(cls, device_class: DeviceClass, card: Card) -> CudaDevice:
        return cls(
            name=device_class.name,
            arch=device_class.arch,
            sm_count=card.sm_count,
            card=card,
            worker=CardWorker(card.index, card.uuid or f"index-{card.index}", say=_say),
            note=f"{card}: every candidate is checked and timed there{_own_class(device_class)}",
        )

    @property
    def device_class(self) -> DeviceClass:
        """What the card itself is, whose numbers are kept with its results."""
        found = class_of(self.card)
        assert found is not None, f"{self.card} was taken for a {self.name}"
        return found

    @functools.cached_property
    def driver(self) -> str:
        """As its samples name it; empty where NVML does not tell. Does not start the worker."""
        if self.told_driver:
            return self.told_driver
        return Telemetry(self.card.uuid).driver if self.card.uuid else ""

    def begin(self) -> bool:
        """Start the worker's process; True if it serves already."""
        return self.worker.begin()

    @functools.cached_property
    def judge(self) -> str:
        health = self.worker.health
        return (
            f"{health.name}, driver {health.driver}, CUDA {health.cuda}, {health.policy}; "
            f"{PROTOCOL}; {CHECK_VERSION}"
        )

    def check(self, compiled: CompiledKernel, legal: Legal, problem: Problem) -> Future[Outcome]:
        """The problem itself, every element."""
        return self.asked(lambda: self._check(compiled, legal, [problem], REPEATS))

    def check_full(self, compiled: CompiledKernel, legal: Legal, problem: Problem) -> Future[Outcome]:
        """More launches, and problems whose edges cut the tiles elsewhere."""
        ragged = ragged_problems(legal.config, problem, self.arch)
        return self.asked(lambda: self._check(compiled, legal, [problem, *ragged], WINNER_REPEATS))

    def time(self, compiled: CompiledKernel, legal: Legal, problem: Problem) -> Future[Outcome]:
        """A cheap timing, to choose who takes part in the final."""
        return self.asked(lambda: self._time(compiled, legal, problem))

    def interleave(
        self, contenders: Sequence[tuple[CompiledKernel, Legal]], problem: Problem, options: FinalsOptions
    ) -> Future[list[Samples] | Outcome]:
        """Samples of each, taken in rounds, or what went wrong with one of them."""
        return self.asked(lambda: self._interleave(contenders, problem, options))

    def check_object(
        self, candidate: Loadable, config: KernelConfig, problems: Sequence[Problem]
    ) -> list[CaseReport]:
        """An object as it is, judged as a winner is. Raises ``CandidateFault``."""
        self._make_sure_of_room(problems[0])
        cases = [Case.of(config, problem) for problem in problems]
        return self.worker.check(candidate, cases, repeats=WINNER_REPEATS, seed=secrets.randbits(31))

    def close(self) -> None:
        """End the worker; it ends with this process in any case."""
        self.worker.close()

    def _check(
        self, compiled: CompiledKernel, legal: Legal, problems: Sequence[Problem], repeats: int
    ) -> Outcome:
        self._make_sure_of_room(problems[0])
        cases = [Case.of(legal.config, problem) for problem in problems]
        seed = secrets.randbits(31)
        try:
            reports: list[CaseReport] = self.worker.check(
                Loadable.of(compiled, legal.config), cases, repeats=repeats, seed=seed
            )
        except CandidateFault as fault:
            return Outcome(status=fault.status, reason=f"{fault} (seed {seed})")
        return Outcome(status=Status.OK, reason=describe(reports, self.worker.health.name))

    def _time(self, compiled: CompiledKernel, legal: Legal, problem: Problem) -> Outcome:
        self._make_sure_of_room(problem)
        try:
            samples = self.worker.time(
                Loadable.of(compiled, legal.config), Case.of(legal.config, problem), QUICK
            )
        except CandidateFault as fault:
            return Outcome(status=fault.status, reason=str(fault))
        timing = with_simulation(samples.timing(), compiled, legal, problem, self)
        return Outcome(status=Status.OK, timing=timing)

    def _interleave(
        self, contenders: Sequence[tuple[CompiledKernel, Legal]], problem: Problem, options: FinalsOptions
    ) -> list[Samples] | Outcome:
        entries = [
            (Loadable.of(compiled, legal.config), Case.of(legal.config, problem))
            for compiled, legal in contenders
        ]
        try:
            return self.worker.finals(entries, options)
        except CandidateFault as fault:
            return Outcome(status=fault.status, reason=str(fault))

    def _make_sure_of_room(self, problem: Problem) -> None:
        health = self.worker.health
        needed = bytes_needed(problem, health.l2_bytes)
        if needed > health.free_bytes:
            raise InputError(
                f"{problem} needs about {needed >> 20} MiB on cuda:{self.card.index}, {health.free_bytes >> 20} of "
                f"{health.total_bytes >> 20} MiB are free; end what else uses the card, or take a smaller problem"
            )


def _own_class(device_class: DeviceClass) -> str:
    if device_class.name in DEVICE_CLASSES:
        return ""
    return f"; it is none of the shipped classes, its results go to {device_class.name}"


def bytes_needed(problem: Problem, l2_bytes: int) -> int:
    """About what checking and timing a candidate takes on the card, without its workspace."""
    operator = operator_of(problem)
    sizes = operator.tensor_bytes(problem)
    operands, outputs = sum(sizes.values()), sum(sizes[name] for name in operator.signature.outputs)
    rotated = sets_needed(operands, l2_bytes) * (operands + outputs)  # outputs are kept to compare with
    oracle = operator.check_bytes(problem) if operator.check_bytes else oracle_bytes(problem)
    return max(rotated, 3 * operands + oracle, 2 * operands + chain_bytes(problem)) + SPARE_BYTES


def oracle_bytes(problem: Problem) -> int:
    """What an oracle may take of which the operator says nothing (``Operator.check_bytes``): ``INPUT_COPIES`` of each
    input and ``OUTPUT_COPIES`` of each output, in float64."""
    signature = operator_of(problem).signature
    elements = {
        name: spec.nbytes // DTYPE_BYTES[spec.dtype] for name, spec in signature.tensors(problem).items()
    }
    inputs, outputs = (
        sum(elements[name] for name in names) for names in (signature.inputs, signature.outputs)
    )
    return DTYPE_BYTES["fp64"] * (INPUT_COPIES * inputs + OUTPUT_COPIES * outputs)
