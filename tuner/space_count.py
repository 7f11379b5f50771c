"""Exact counts and enumeration of a space too large to walk (10^8 points), from what legality looks at.

``legalize`` runs on a config that reveals a knob only when it is read, and forks there over the knob's choices. A run
that ends without reading a knob has answered for all its choices. Two things shrink the tree further, both derived
from the rules, not assumed:

- choices of a knob that no knob rule tells apart (all clusters with an even M, say) form one class;
- a knob that is read by the knob rules only, not by what resolves stages and budgets after them, needs one choice of
  each class. Which knobs those are is observed in every run; where a class turns out too coarse, counting starts over
  with that knob's choices taken apart.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from kernel_space.arch import Arch
from kernel_space.config import KernelConfig, knob_names
from kernel_space.problem import GemmProblem
from kernel_space.rules import Legal, Rejection

Choices = Mapping[str, Sequence[Any]]  # knob -> values
Legalize = Callable[[KernelConfig, GemmProblem, Arch], Legal | Rejection]
KnobRules = Mapping[str, Callable[[KernelConfig, GemmProblem], str | None]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Count:
    """Points of a space for one problem. ``raw`` = ``spelled`` + all of ``rejected``.

    ``spelled``: points that are legal as written; ``legal``: distinct kernels among them, after ``auto`` is resolved
    and knobs without effect have one spelling. ``rejected``: rule -> points, under the first rule that rejects.
    """

    raw: int
    spelled: int
    legal: int
    rejected: dict[str, int]


class _Unread(Exception):
    """A knob is read for the first time in a run that has no value for it."""

    def __init__(self, knob: str) -> None:
        self.knob = knob


class _Watch:
    """Knob names in the order in which they were read, and those that were overwritten."""

    def __init__(self) -> None:
        self.reads: list[str] = []
        self.writes: set[str] = set()


class _Watched(KernelConfig):
    """A config that knows only some knobs, tells which are read, and raises ``_Unread`` for the others."""

    known: Mapping[str, Any]
    watch: _Watch

    @classmethod
    def of(cls, known: Mapping[str, Any], watch: _Watch) -> Self:
        self = object.__new__(cls)
        self.__dict__.update(known=known, watch=watch)
        return self

    def replace(self, **changes: Any) -> Self:
        self.watch.writes.update(changes)
        return self.of({**self.known, **changes}, self.watch)


def _revealing(name: str) -> property:
    def read(self: _Watched) -> Any:
        self.watch.reads.append(name)
        try:
            return self.known[name]
        except KeyError:
            raise _Unread(name) from None

    return property(read)


for _name in knob_names():
    setattr(_Watched, _name, _revealing(_name))


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One run: the values it read, what came out, and what it watched."""

    values: dict[str, Any]
    result: Any
    watch: _Watch


def explore(function: Callable[[KernelConfig], Any], choices: Choices) -> Iterator[Leaf]:
    """Run ``function`` for every combination of values that it can tell apart, in the order of ``choices``."""
    pending: list[dict[str, Any]] = [{}]
    while pending:
        values = pending.pop()
        watch = _Watch()
        try:
            result = function(_Watched.of(values, watch))
        except _Unread as unread:
            pending += [{**values, unread.knob: value} for value in reversed(choices[unread.knob])]
            continue
        yield Leaf(values, result, watch)


def legal_points(choices: Choices, problem: GemmProblem, arch: Arch, legalize: Legalize) -> Iterator[Legal]:
    """Every distinct legal kernel once, in the order of ``choices``; takes the first ones without the rest."""
    seen: set[str] = set()
    for leaf in explore(lambda config: legalize(config, problem, arch), choices):
        if isinstance(leaf.result, Rejection):
            continue
        free = [name for name in choices if name not in leaf.values]
        for values in itertools.product(*(choices[name] for name in free)):
            config = KernelConfig(**leaf.values, **dict(zip(free, values, strict=True)))
            legal = legalize(config, problem, arch)
            if isinstance(legal, Legal) and str(legal.config) not in seen:
                seen.add(str(legal.config))
                yield legal


def count(
    choices: Choices, problem: GemmProblem, arch: Arch, legalize: Legalize, knob_rules: KnobRules
) -> Count:
    """Exact numbers of legal and rejected points. ``legalize`` must ask all ``knob_rules`` first, in order."""
    verdicts = {
        name: list(explore(lambda config, rule=rule: rule(config, problem), choices))
        for name, rule in knob_rules.items()
    }
    classes = {knob: _rule_classes(knob, values, verdicts) for knob, values in choices.items()}
    apart: set[str] = set()
    while True:
        grid = _Grid(choices, classes, apart)
        try:
            return _count(grid, problem, arch, legalize, knob_rules)
        except _TooCoarse as coarse:
            apart |= coarse.knobs


class _TooCoarse(Exception):
    def __init__(self, knobs: set[str]) -> None:
        self.knobs = knobs


class _Grid:
    """One value of each class, with the number of choices it stands for; every choice of the knobs in ``apart``."""

    def __init__(self, choices: Choices, classes: Mapping[str, list[list[Any]]], apart: set[str]) -> None:
        parts = {
            name: [[value] for value in values] if name in apart else classes[name]
            for name, values in choices.items()
        }
        self.values = {name: [members[0] for members in part] for name, part in parts.items()}
        self.sizes = {name: {members[0]: len(members) for members in part} for name, part in parts.items()}
        self.totals = {name: len(values) for name, values in choices.items()}
        self.merged = {name for name, part in parts.items() if len(part) < self.totals[name]}

    def points(self, values: Mapping[str, Any]) -> int:
        """Raw points that a run with ``values`` has answered for."""
        return math.prod(
            self.sizes[name].get(values[name], 1) if name in values else total
            for name, total in self.totals.items()
        )


def _count(grid: _Grid, problem: GemmProblem, arch: Arch, legalize: Legalize, knob_rules: KnobRules) -> Count:
    rejected: Counter[str] = Counter()
    spelled, resolved = 0, []
    for leaf in explore(lambda config: legalize(config, problem, arch), grid.values):
        _check_grid(grid, leaf, problem, knob_rules)
        if isinstance(leaf.result, Rejection):
            rejected[leaf.result.rule] += grid.points(leaf.values)
        else:
            spelled += grid.points(leaf.values)
            resolved.append(leaf.result.config.known)
    raw = math.prod(grid.totals.values())
    return Count(raw=raw, spelled=spelled, legal=_distinct(grid, resolved), rejected=dict(rejected))


def _check_grid(grid: _Grid, leaf: Leaf, problem: GemmProblem, knob_rules: KnobRules) -> None:
    """Raise ``_TooCoarse`` if anything after the knob rules looked at a knob whose choices are merged."""
    watch = _Watch()
    config = _Watched.of(leaf.values, watch)
    for rule in knob_rules.values():
        if rule(config, problem):
            break
    if leaf.watch.reads[: len(watch.reads)] != watch.reads:
        raise AssertionError("legalize must ask every knob rule, in order, before anything else")
    touched = grid.merged & (set(leaf.watch.reads[len(watch.reads) :]) | leaf.watch.writes)
    if touched:
        raise _TooCoarse(touched)


def _distinct(grid: _Grid, resolved: list[Mapping[str, Any]]) -> int:
    """Distinct kernels in the union of ``resolved``, where a knob that is missing stands for all its choices."""
    fixed = [name for name in grid.totals if any(name in values for values in resolved)]
    free = math.prod(total for name, total in grid.totals.items() if name not in fixed)
    keys = set()
    for values in resolved:
        keys.update(
            itertools.product(*((values[name],) if name in values else grid.values[name] for name in fixed))
        )
    sizes = [grid.sizes[name] for name in fixed]
    return free * sum(
        math.prod(size.get(value, 1) for size, value in zip(sizes, key, strict=True)) for key in keys
    )


def _rule_classes(knob: str, values: Sequence[Any], verdicts: Mapping[str, list[Leaf]]) -> list[list[Any]]:
    """``values`` of ``knob`` in groups that every knob rule treats alike, whatever the other knobs are."""
    seen: dict[Any, list[Any]] = {value: [] for value in values}
    for rule, leaves in verdicts.items():
        for leaf in leaves:
            if knob in leaf.values:
                others = sorted((name, value) for name, value in leaf.values.items() if name != knob)
                seen[leaf.values[knob]].append((rule, others, bool(leaf.result)))
    classes: dict[str, list[Any]] = {}
    for value, verdict in seen.items():
        classes.setdefault(repr(verdict), []).append(value)
    return list(classes.values())
