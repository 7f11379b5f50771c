"""Who judges candidates: the Device protocol. Which device is meant by a name is for ``select.py`` to say."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

from kernel_space.core.arch import Arch
from kernel_space.core.problem import Problem
from tuner.devices.abilities import Abilities
from tuner.trials.outcome import Kind, Outcome

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel
    from kernel_space.core.rules import Legal
    from tuner.card.samples.samples import Samples
    from tuner.card.worker.bench import FinalsOptions


class Device(Protocol):
    """What a tune asks. Answers are futures: the device may be another process or another host.

    ``judge`` names what its verdicts depend on besides the kernel: the hash of the simulator, or driver and clocks;
    trials of another judge never answer for this one. ``note`` is one line for the user, or empty. What a
    future raises is a bug or the end of the device (``CardLost``); a candidate's fault is an ``Outcome``.
    """

    @property
    def name(self) -> str: ...
    @property
    def arch(self) -> Arch: ...
    @property
    def sm_count(self) -> int: ...
    @property
    def kind(self) -> Kind: ...
    @property
    def judge(self) -> str: ...
    @property
    def abilities(self) -> Abilities: ...
    @property
    def note(self) -> str: ...

    def begin(self) -> bool:
        """Get ready, if that takes seconds; returns at once, True if the device is ready already."""
        ...

    def check(self, compiled: CompiledKernel, legal: Legal, problem: Problem) -> Future[Outcome]:
        """OK, or why not. OK with a reason means: nothing speaks against it, but it was not checked, because ..."""
        ...

    def time(self, compiled: CompiledKernel, legal: Legal, problem: Problem) -> Future[Outcome]:
        """OK with ``timing``, or why there is none."""
        ...

    def check_full(self, compiled: CompiledKernel, legal: Legal, problem: Problem) -> Future[Outcome]:
        """More than ``check``, as its reason says; asked for winners, of a device that ``checks_winner``."""
        ...

    def interleave(
        self, contenders: Sequence[tuple[CompiledKernel, Legal]], problem: Problem, options: FinalsOptions
    ) -> Future[list[Samples] | Outcome]:
        """Samples of rounds with all ``contenders``, one per contender in their order; or what went wrong with one.
        Asked of a device that ``ranks_leaders``."""
        ...


def driver_of(device: Device) -> str:
    """The version of a card's driver, as its samples name it; empty for what is no card, or does not tell."""
    return str(getattr(device, "driver", ""))
