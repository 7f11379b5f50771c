"""Who judges candidates: the Device protocol. Which device is meant by a name is for ``select.py`` to say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from kernel_space.core.arch import Arch
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.trials.outcome import Kind, Outcome

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel
    from kernel_space.core.rules import Legal
    from tuner.card.samples.samples import Samples
    from tuner.card.worker.bench import FinalsOptions


class Device(Protocol):
    """What the stages validate and time ask.

    ``judge`` names what its verdicts depend on besides the kernel: the hash of the simulator, or driver and clocks;
    trials of another judge never answer for this one. ``eager_validation``: check each candidate before it is
    timed (cheap on hardware); otherwise only those whose time could win. ``note`` is one line for the user, or empty.
    """

    name: str
    arch: Arch
    sm_count: int
    kind: Kind
    judge: str
    eager_validation: bool
    note: str

    def validate(self, compiled: CompiledKernel, legal: Legal, problem: GemmProblem) -> Outcome:
        """OK, or why not. OK with a reason means: nothing speaks against it, but it was not checked, because ..."""
        ...

    def time(self, compiled: CompiledKernel, legal: Legal, problem: GemmProblem) -> Outcome:
        """OK with ``timing``, or why there is none."""
        ...


@runtime_checkable
class TimesAhead(Protocol):
    """A device on which several candidates can be timed at once."""

    def time_ahead(self, compiled: CompiledKernel, legal: Legal, problem: GemmProblem) -> None:
        """Begin what ``time`` will be asked; returns at once. Any thread may call it."""
        ...


@runtime_checkable
class RanksLeaders(Protocol):
    """A device on which candidates can be timed against one another: ``gpu.finals`` decides between them."""

    def interleave(
        self, contenders: Sequence[tuple[CompiledKernel, Legal]], problem: GemmProblem, options: FinalsOptions
    ) -> list[Samples] | Outcome:
        """Samples of ``gpu.bench.interleave``, one per contender in their order; or what went wrong with one."""
        ...


@runtime_checkable
class BeginsAhead(Protocol):
    """A device that takes seconds to get ready, in which its user has other things to do."""

    def begin(self) -> bool:
        """Begin with that; returns at once, True if the device is ready already."""
        ...


@runtime_checkable
class ChecksAhead(Protocol):
    """A device on which several candidates can be checked at once."""

    def validate_ahead(self, compiled: CompiledKernel, legal: Legal, problem: GemmProblem) -> None:
        """Begin what ``validate`` will be asked; returns at once."""
        ...


@runtime_checkable
class ChecksWinner(Protocol):
    """A device whose ``validate`` runs a smaller problem, and which can run the real one once."""

    def validate_full(self, compiled: CompiledKernel, legal: Legal, problem: GemmProblem) -> Outcome:
        """OK with what was checked as its reason, or why not."""
        ...
