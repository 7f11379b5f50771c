"""What is launched for a problem, and in which words that is told."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import Problem
from kernel_space.core.stand_in import StandIn, compiled_sizes
from tuner.tables.bundle import ObjectFile
from tuner.tables.row import Row
from tuner.trials.checked import Check

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """A kernel that was compiled in this process, for ``problem``. ``borrowed``: whose row's its config is."""

    problem: Problem
    config: KernelConfig
    compiled: CompiledKernel
    borrowed: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """What is launched for ``problem``.

    ``stand_in``: that problem, or one of larger compiled sizes to which the inputs are adapted. ``source``: ``exact``,
    ``nearest M <m>``, ``compiled for <problem>``, ``nearest layer <problem>``, ``spare of R=<r>`` or ``any shape of
    R=<r>``, of the launched problem. ``row``: the table's row behind it, None for one that has none. ``borrowed``:
    empty for a kernel from the device class's own table, else whose it is and why; ``reason`` ends in it. ``reason``:
    one line for people. ``str()`` is all of it.
    """

    problem: Problem
    stand_in: StandIn
    config: KernelConfig
    source: str
    row: Row | None
    object: ObjectFile
    reason: str
    borrowed: str = ""

    @property
    def launched(self) -> Problem:
        return self.stand_in.problem

    @property
    def is_padded(self) -> bool:
        """Whether the inputs are adapted to a kernel of other sizes."""
        return self.launched != self.problem

    def __str__(self) -> str:
        launched = f"launched   {self.launched}: {self.stand_in.note}\n" if self.is_padded else ""
        options = " ".join(f"{name}={value}" for name, value in self.problem.options.items())
        return (
            f"problem    {self.problem}{options and f' ({options})'}\n"
            f"{launched}"
            f"source     {self.source}: {self.reason}\n"
            f"config     {self.config}\n"
            f"object     {self.object.path}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """``known``: the problem it was tuned or compiled for; without ``row`` and ``compiled`` it is only bundled, as a
    ``spare`` or for any shape."""

    known: Problem
    config: str
    row: Row | None = None
    compiled: CompiledKernel | None = None
    borrowed: str = ""
    spare: bool = False

    @property
    def is_for_any_shape(self) -> bool:
        return self.row is None and self.compiled is None and not self.spare


def source_of(candidate: Candidate, problem: Problem) -> str:
    """Where the kernel is from that is launched for ``problem``."""
    known = candidate.known
    if candidate.compiled is not None:
        return f"compiled for {known}"
    if candidate.spare:
        return f"spare{of_sizes(known)}"
    if candidate.is_for_any_shape:
        return f"any shape{of_sizes(known)}"
    if known == problem:
        return "exact"
    if known.bucket != problem.bucket:
        return f"nearest layer {known}"
    batch = [name for name, form in known.forms().items() if form.batch]
    values = ",".join(str(getattr(known, name)) for name in batch)
    return f"nearest {','.join(name.upper() for name in batch)} {values}"


def reason_of(candidate: Candidate, problem: Problem, file: ObjectFile) -> str:
    """What is known of the kernel that is launched: the row's time, and what a card said of this very object.

    That of a row's own options was judged when it was tuned; one compiled here on request nobody checked.
    """
    row = candidate.row
    said = f"was {file.checked}" if file.checked else "was not checked on a card"
    if candidate.spare:
        return f"bundled without a row, for what trials at {candidate.known} say of its kind; it {said}"
    if candidate.is_for_any_shape:
        return f"bundled without a row{of_sizes(problem)}, never timed: tune such a shape; it {said}"
    if row is None:
        return f"compiled in this process, {Check.NONE}"
    time = f"{row.kind} {row.time_us:.4g} us at {row.key.problem}"
    how = "" if row.check is Check.WINNER else f", {row.check}"
    if candidate.known.options != problem.options:
        return f"{time} as {options_of(candidate.known)}{how}; this {options_of(problem)} object {said}"
    return f"{time}{how}" + (f"; {file.checked} again" if file.checked else "")


def options_of(problem: Problem) -> str:
    """``bf16``, or ``fp16/bf16`` where the options differ."""
    return "/".join(dict.fromkeys(problem.options.values()))


def sizes_of(problem: Problem) -> str:
    """``R=128``: the compiled sizes."""
    return " ".join(f"{name.upper()}={value}" for name, value in compiled_sizes(problem).items())


def of_sizes(problem: Problem) -> str:
    """`` of R=128``, nothing for an operator that has no compiled size."""
    sizes = sizes_of(problem)
    return f" of {sizes}" if sizes else ""
