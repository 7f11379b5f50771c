"""What the machine, its clock and reports may know of a kernel beside its PTX: all optional.

``Kernel.machine`` names a module with ``TRAITS``, or holds them. A kernel without one has the defaults, which are right
for every kernel: problems are cut from the operator's own (``kernel_space.check.problem``), the budget of instructions
follows from the operator's work, operands are called by their arguments. What a kernel states here makes checks sharper
and quicker, reports more readable, and searches shorter; it never decides what is right.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from kernel_space.core.arch import Arch
from kernel_space.core.errors import InputError
from kernel_space.core.kernel import Kernel


class Chip(Protocol):
    """What a time depends on besides kernel and problem."""

    @property
    def arch(self) -> Arch: ...
    @property
    def sm_count(self) -> int: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """How a launch is dealt out: ``pieces`` of equal work over ``places`` clusters at once, each of ``steps`` turns of
    the main loop.
    """

    pieces: int
    places: int
    steps: int

    @property
    def waves(self) -> int:
        """Pieces of the cluster that has the most."""
        return -(-self.pieces // self.places)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelledTime:
    """Microseconds of one launch by a formula.

    ``low_us`` and ``high_us`` are the extremes over what the formula's constants may be. ``terms`` add up to ``us``.
    ``demands`` are what each resource would need alone, in microseconds; ``bound`` names the largest.
    """

    us: float
    low_us: float
    high_us: float
    terms: dict[str, float]
    demands: dict[str, float]
    bound: str


class Rates(Protocol):
    """What ``Effort`` is counted by. ``dram_bytes_s``: None if nobody told."""

    @property
    def sm_count(self) -> int: ...
    @property
    def dram_bytes_s(self) -> float | None: ...


OVERLAP = 3.0  # power of the mean in which needs that overlap add up: 1 is one after the other, infinity the largest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Effort:
    """What a launch needs, each by a name, in microseconds at nominal rates: what measured times are fitted by.

    ``steps``    steps of the main loop of the SM that has the most, over ``turns`` pieces of work
    ``step``     needs of one step, which overlap
    ``turn``     needs of one turn besides, one after the other
    ``beside``   needs of the whole launch that overlap with all turns
    ``once``     needs of the whole launch, one after the other
    ``choices``  knobs that are worth a share of the time, as numbers near 0 and 1
    """

    steps: float
    turns: float
    step: Mapping[str, float]
    turn: Mapping[str, float]
    beside: Mapping[str, float]
    once: Mapping[str, float]
    choices: Mapping[str, float]

    @property
    def needs(self) -> tuple[str, ...]:
        """Names that want a factor, 1 if the kernel reached nominal rates."""
        return (*self.step, *self.turn, *self.beside, *self.once)

    def us(self, factors: Mapping[str, float], shares: Mapping[str, float]) -> float:
        """Microseconds. ``factors``: of each need; ``shares``: log of what a choice of 1 multiplies the time by.

        Numbers may be arrays, an element for each of many launches. Raises ``KeyError`` for a need without a factor.
        """
        step = _overlapping(factors[name] * us for name, us in self.step.items())
        turn = sum(factors[name] * us for name, us in self.turn.items())
        beside = (factors[name] * us for name, us in self.beside.items())
        together = _overlapping([self.steps * step + self.turns * turn, *beside])
        once = sum(factors[name] * us for name, us in self.once.items())
        share = sum(shares[name] * at for name, at in self.choices.items())
        return (together + once) * math.e**share


def _overlapping(needs: Iterable[float]) -> float:
    return sum(us**OVERLAP for us in needs) ** (1 / OVERLAP)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MachineTraits:
    """Of one kernel. ``config`` is always resolved, ``problem`` one that it is legal for.

    The check in the machine:

    ``exercise``   ``(config, problem)`` -> (problem, SMs): a small problem of the same class on which a run of a second
                   meets every edge, second turns of rings, and several tiles per CTA
    ``cut``        ``(config, problem, seconds)`` -> ``problem``, or one with fewer tiles whose check takes that long
    ``most_instructions``  ``(config, problem, sms)`` -> warp-instructions that no correct run needs
    ``barriers``   ``(row of the budget)`` -> is it a ring of mbarriers? States also that shared memory is laid out as
                   the budget's rows say, in order and without gaps; then copies must keep to their slots
    ``roles``      warp number -> name, for reports; ``tma_warp``, ``mma_warp`` and the first of ``epilogue…`` have
                   lanes in timelines
    ``mutations``  module with defects of this kernel's PTX for ``check --inject``: ``MUTATIONS``, ``CASES``,
                   ``MutationContext``, ``NotApplicable``, ``find_mutation``

    The clock:

    ``operands``   argument -> the operand that its TMA loads bring, where several arguments are one
    ``causes``     cause of the clock's account -> what reports call it
    ``atomic_results``  ``(config, problem, sm_count)`` -> what the atomics of a CTA return in turn
    ``schedule``   ``(config, problem, sm_count)`` -> ``Schedule`` of a persistent grid

    A formula, for a kernel that has one:

    ``model``      ``(config, problem, chip)`` -> ``ModelledTime``
    ``model_us``   ``(config, problem, chip)`` -> microseconds, quicker: a search asks for thousands
    ``modelled``   names of the architectures that it is for

    For a kernel whose times are fitted by measured ones (``tuner.calibration.fit``):

    ``effort``     ``(config, problem, rates)`` -> ``Effort``; of the same names for every config
    """

    exercise: Callable[[Any, Any], tuple[Any, int]] | None = None
    cut: Callable[[Any, Any, float], Any] | None = None
    most_instructions: Callable[[Any, Any, int], int] | None = None
    barriers: Callable[[str], bool] | None = None
    roles: Mapping[int, str] = dataclasses.field(default_factory=dict)
    mutations: str = ""
    operands: Mapping[str, str] = dataclasses.field(default_factory=dict)
    causes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    atomic_results: Callable[[Any, Any, int], tuple[int, ...]] | None = None
    schedule: Callable[[Any, Any, int], Schedule] | None = None
    model: Callable[[Any, Any, Chip], ModelledTime] | None = None
    model_us: Callable[[Any, Any, Chip], float] | None = None
    modelled: tuple[str, ...] = ()
    effort: Callable[[Any, Any, Rates], Effort] | None = None


PLAIN = MachineTraits()


@functools.cache
def traits_of(kernel: Kernel) -> MachineTraits:
    """Those that ``kernel.machine`` states, or the defaults. Raises ``InputError`` when that module cannot be had."""
    if not isinstance(kernel.machine, str):
        return kernel.machine
    if not kernel.machine:
        return PLAIN
    try:
        found = importlib.import_module(kernel.machine).TRAITS
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"{kernel.full_name} names the module {kernel.machine} for TRAITS: {error}"
        ) from error
    if not isinstance(found, MachineTraits):
        raise InputError(f"TRAITS of {kernel.machine} must be MachineTraits, got {type(found).__name__}")
    return found
