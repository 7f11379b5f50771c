"""Rows that are not of today's sources, toolchain, judge or driver: tuned again, among what was known to be good.

A retime is a tune whose search is a short list: the row's config, the next best that earlier visits found, the default.
All else is a tune's: stages, journal (of today's identity, so that a killed retime goes on and nothing of yesterday
answers), merge rule. Stopped before every candidate was judged, it leaves the row as it is: otherwise a part of
the list would pass for a fresh row, which nobody retimes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import AnyPath, below
from kernel_space.core.problem import Problem
from kernel_space.core.registry import parse_config
from kernel_space.core.rules import Legal, legalize
from kernel_space.places import layers
from tuner.devices.device import Device
from tuner.files.notice import Say
from tuner.space.published import published_config
from tuner.space.space import SearchSpace
from tuner.tables.dispatch import DispatchTable
from tuner.tables.merge import Current, outdated_reason
from tuner.tables.row import Row
from tuner.trials.candidate import Candidate
from tuner.trials.outcome import Origin
from tuner.tune.earlier import earlier_visits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outdated:
    """``row`` and in words what has changed since it was made; nothing of a row of today that is asked for."""

    row: Row
    reason: str

    @property
    def problem(self) -> Problem:
        return self.row.key.problem


def table_of_device(results: AnyPath, device: Device) -> DispatchTable:
    """With the rows that are shipped below the user's own, which a retime then records as the user's.

    Raises ``InputError`` for a damaged table and for one without rows."""
    folders = [below(layer, device.name) for layer in layers(results)]
    table = DispatchTable.over(folders, arch=device.arch)
    if not table.rows:
        raise InputError(f"there is no row in {folders[0]}, so nothing can be retimed; tune first")
    return table


def outdated_rows(
    table: DispatchTable,
    now: Current,
    *,
    operator: str | None = None,
    problems: Sequence[Problem] = (),
    fresh_too: bool = False,
) -> list[Outdated]:
    """Rows of ``table`` that a retime is for, in its order: those of ``problems``, or all of ``operator``, or all.

    Raises ``InputError`` for a problem without a row."""
    if missing := [str(problem) for problem in problems if not table.own(problem)]:
        raise InputError(f"the table has no row of {'; '.join(missing)}; tune it first")
    rows = [row for row in table.rows.values() if not problems or row.key.problem in problems]
    found = [
        Outdated(row=row, reason=outdated_reason(row, now))
        for row in rows
        if operator is None or row.key.op == operator
    ]
    return [one for one in found if one.reason or fresh_too]


def candidates_of(
    row: Row, results: AnyPath, device: Device, *, runners_up: int, say: Say
) -> list[Candidate]:
    """The row's config, the default, the published one where there is one, and ``runners_up`` others: the row's
    runner-up, then the best of earlier visits.

    Legal ones only, each kernel once; of earlier visits only points of the search space. ``say`` is told in one line
    what is left out.
    """
    problem = row.key.problem
    choice = _Choice(problem, device)
    choice.take([("the row's config", row.config)])
    choice.take_references()
    most = len(choice.found) + runners_up
    second = [("its runner-up", row.runner_up.config)] if row.runner_up is not None else []
    choice.take(second, most=most)
    earlier = (("of an earlier visit", config) for config in _best(problem, results, device, say))
    choice.take(earlier, most=most, in_space=True)
    if choice.left_out:
        others = len(choice.left_out) - 1
        say(f"left out: {choice.left_out[0]}" + (f"; and {others} more" if others else ""))
    return list(choice.found.values())


def _best(problem: Problem, results: AnyPath, device: Device, say: Say) -> tuple[str, ...]:
    """A damaged file of earlier visits costs what it held, not the retime."""
    try:
        return earlier_visits(results, problem, device).best
    except InputError as error:
        say(f"earlier visits are passed over: {error}")
        return ()


class _Choice:
    """``found``: by resolved config. ``left_out``: a line about each that is not legal or cannot be read."""

    def __init__(self, problem: Problem, device: Device) -> None:
        self.found: dict[str, Candidate] = {}
        self.left_out: list[str] = []
        self._problem, self._arch = problem, device.arch
        self._space = SearchSpace.load(problem.operator, device.arch)

    def take(
        self, configs: Iterable[tuple[str, str]], *, most: int | None = None, in_space: bool = False
    ) -> None:
        """``configs``: (what it is, printed config), until there are ``most``."""
        for what, printed in configs:
            if most is not None and len(self.found) >= most:
                return
            try:
                config = parse_config(self._problem.operator, self._arch, printed)
                self._admit(config, Origin.NEIGHBOUR, in_space=in_space)
            except InputError as error:
                self.left_out.append(f"{what}: {error} ({printed})")

    def take_references(self) -> None:
        """What the row is compared with on its page: the default, and the published config as a search has it."""
        references = [(Origin.DEFAULT, self._space.default(self._problem))]
        if (published := published_config(self._problem, self._arch)) is not None:
            references.append((Origin.PUBLISHED, published.config))
        for origin, config in references:
            try:
                self._admit(config, origin, in_space=origin is Origin.PUBLISHED)
            except InputError as error:
                self.left_out.append(f"{origin}: {error} ({config})")

    def _admit(self, config: KernelConfig, origin: Origin, *, in_space: bool = False) -> None:
        """Raises ``InputError`` that says why not."""
        legal = legalize(config, self._problem, self._arch)
        if not isinstance(legal, Legal):
            raise InputError(f"not legal by rule {legal.rule}: {legal.reason}")
        if in_space and self._space.spell(config, self._problem, self._arch, legalize) is None:
            raise InputError("not in the search space")
        resolved = str(legal.config)
        if (known := self.found.get(resolved)) is None:
            number = len(self.found)
            self.found[resolved] = Candidate(number=number, config=config, legal=legal, origin=origin)
        elif origin is Origin.DEFAULT:  # reports look for it by its origin
            self.found[resolved] = dataclasses.replace(known, origin=origin)
