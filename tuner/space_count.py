"""Exact counts and enumeration of a space too large to walk (10^8 points), from what legality looks at.

``legalize`` runs on a config that reveals a knob only when it is read, and forks there over the knob's choices. A run
that ends without reading a knob has answered for all its choices. Three things shrink the work further, all derived
from the rules, not assumed:

- choices of a knob that no knob rule tells apart (all clusters with an even M, say) form one class;
- a knob that is read by the knob rules only, not by what resolves stages and budgets after them, needs one choice of
  each class. Which knobs those are is observed, first on random points and then in every run; where a class turns out
  too coarse after all, counting starts over with that knob's choices taken apart.
- a knob that every kernel of a group overwrites, unread, is one value there (``_distinct``).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kernel_space.arch import Arch
from kernel_space.config import KernelConfig
from kernel_space.kernel_spec import Rule, kernel_spec
from kernel_space.problem import GemmProblem
from kernel_space.rules import Legal, Rejection

PROBES = 500

Choices = Mapping[str, Sequence[Any]]  # knob -> values
Legalize = Callable[[KernelConfig, GemmProblem, Arch], Legal | Rejection]
KnobRules = Mapping[str, Rule]


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


class _Run:
    """One execution: the values it has read so far, in order, and the branches it left for later."""

    def __init__(self, values: dict[str, Any], choices: Choices, pending: list[dict[str, Any]]) -> None:
        self.values, self.choices, self.pending = values, choices, pending
        self.reads: list[str] = []

    def first_read(self, name: str) -> Any:
        """Go on with the first choice; the others wait with what was read before."""
        value, *others = self.choices[name]
        self.pending += [{**self.values, name: other} for other in reversed(others)]
        self.values[name] = value
        return value


@functools.cache
def _watched_class(config_class: type[KernelConfig]) -> type[KernelConfig]:
    """A config class whose knobs have no value before they are read."""

    def replace(self: Any, **changes: Any) -> Any:
        return _watched(config_class, self.run, {**self.replaced, **changes})

    members = {name: _revealing(name) for name in config_class.knob_names()}
    return type(f"Watched{config_class.__name__}", (config_class,), {**members, "replace": replace})


def _watched(config_class: type[KernelConfig], run: _Run, replaced: Mapping[str, Any]) -> KernelConfig:
    """A config that reads from ``run``. ``replaced`` holds the knobs that ``replace`` has given a value."""
    watched = _watched_class(config_class)
    self = object.__new__(watched)
    self.__dict__.update(run=run, replaced=replaced)
    return self


def _revealing(name: str) -> property:
    def read(self: Any) -> Any:
        run = self.run
        if name in self.replaced:
            return self.replaced[name]
        run.reads.append(name)
        if name in run.values:
            return run.values[name]
        return run.first_read(name)

    return property(read)


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One run: the values it read, what came out, and the knobs in the order of reading."""

    values: dict[str, Any]
    result: Any
    reads: list[str]


def explore(
    function: Callable[[KernelConfig], Any], choices: Choices, config_class: type[KernelConfig]
) -> Iterator[Leaf]:
    """Run ``function`` once for every combination of values that it can tell apart, in the order of ``choices``."""
    pending: list[dict[str, Any]] = [{}]
    while pending:
        run = _Run(pending.pop(), choices, pending)
        result = function(_watched(config_class, run, {}))
        yield Leaf(run.values, result, run.reads)


def legal_points(choices: Choices, problem: GemmProblem, arch: Arch, legalize: Legalize) -> Iterator[Legal]:
    """Every distinct legal kernel once, in the order of ``choices``; takes the first ones without the rest."""
    seen: set[str] = set()
    config_class = kernel_spec(arch.kernel).config_class
    for leaf in explore(lambda config: legalize(config, problem, arch), choices, config_class):
        if isinstance(leaf.result, Rejection):
            continue
        free = [name for name in choices if name not in leaf.values]
        for values in itertools.product(*(choices[name] for name in free)):
            config = config_class(**leaf.values, **dict(zip(free, values, strict=True)))
            legal = legalize(config, problem, arch)
            if isinstance(legal, Legal) and str(legal.config) not in seen:
                seen.add(str(legal.config))
                yield legal


def count(
    choices: Choices, problem: GemmProblem, arch: Arch, legalize: Legalize, knob_rules: KnobRules
) -> Count:
    """Exact numbers of legal and rejected points. ``legalize`` must ask all ``knob_rules`` first, in order."""
    config_class = kernel_spec(arch.kernel).config_class
    verdicts = {
        name: list(explore(lambda config, rule=rule: rule(config, problem), choices, config_class))
        for name, rule in knob_rules.items()
    }
    classes = {knob: _rule_classes(knob, values, verdicts) for knob, values in choices.items()}
    apart = _probe(choices, problem, arch, legalize, knob_rules)
    while True:
        grid = _Grid(choices, classes, apart)
        try:
            return _count(grid, problem, arch, legalize, knob_rules)
        except _TooCoarse as coarse:
            apart |= coarse.knobs


def _probe(
    choices: Choices, problem: GemmProblem, arch: Arch, legalize: Legalize, knob_rules: KnobRules
) -> set[str]:
    """Knobs that are looked at after the knob rules at some of ``PROBES`` random points: most of those that are at any,
    which saves starting over for each.
    """
    config_class, generator = kernel_spec(arch.kernel).config_class, random.Random(0)
    found: set[str] = set()
    for _ in range(PROBES):
        point = {name: [generator.choice(values)] for name, values in choices.items()}
        (leaf,) = explore(lambda config: legalize(config, problem, arch), point, config_class)
        if not (isinstance(leaf.result, Rejection) and leaf.result.rule in knob_rules):
            found |= _looked_at(leaf, point, config_class, problem, knob_rules)
    return found


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
    config_class = kernel_spec(arch.kernel).config_class
    for leaf in explore(lambda config: legalize(config, problem, arch), grid.values, config_class):
        points = grid.points(leaf.values)
        if isinstance(leaf.result, Rejection):
            rejected[leaf.result.rule] += points
            if leaf.result.rule in knob_rules:
                continue
        else:
            spelled += points
            resolved.append(_Resolved(leaf.values, leaf.result.config.replaced))
        if touched := grid.merged & _looked_at(leaf, grid.values, config_class, problem, knob_rules):
            raise _TooCoarse(touched)
    raw = math.prod(grid.totals.values())
    return Count(raw=raw, spelled=spelled, legal=_distinct(grid, resolved), rejected=dict(rejected))


def _looked_at(
    leaf: Leaf,
    choices: Choices,
    config_class: type[KernelConfig],
    problem: GemmProblem,
    knob_rules: KnobRules,
) -> set[str]:
    """Knobs that anything after the knob rules has read before it overwrote them."""
    run = _Run(dict(leaf.values), choices, [])
    config = _watched(config_class, run, {})
    if any(rule(config, problem) for rule in knob_rules.values()):
        raise AssertionError("legalize must reject what a knob rule rejects")
    asked = len(run.reads)
    if leaf.reads[:asked] != run.reads:
        raise AssertionError("legalize must ask every knob rule, in order, before anything else")
    return set(leaf.reads[asked:])


class _Resolved:
    """Kernels that one run has answered for: knobs that were overwritten, others that were read, the rest open."""

    def __init__(self, values: Mapping[str, Any], replaced: Mapping[str, Any]) -> None:
        self.values, self.replaced = {**values, **replaced}, replaced


def _distinct(grid: _Grid, resolved: list[_Resolved]) -> int:
    """Distinct kernels in the union of ``resolved``, where a knob that is missing stands for all its choices.

    Those that differ in a knob which none leaves open are different: they are counted apart, so that what some leave
    open is not spelled out for others. Raises ``_TooCoarse`` for merged choices that only some of a group overwrite.
    """
    common = [name for name in grid.totals if all(name in one.values for one in resolved)]
    groups: dict[tuple[Any, ...], list[_Resolved]] = {}
    for one in resolved:
        groups.setdefault(tuple(one.values[name] for name in common), []).append(one)
    return sum(_distinct_of_group(grid, group) for group in groups.values())


def _distinct_of_group(grid: _Grid, group: list[_Resolved]) -> int:
    written = {name for one in group for name in one.replaced}
    if mixed := {name for name in written & grid.merged if not all(name in one.replaced for one in group)}:
        raise _TooCoarse(mixed)
    fixed = [name for name in grid.totals if any(name in one.values for one in group)]
    free = math.prod(total for name, total in grid.totals.items() if name not in fixed)
    keys = set()
    for one in group:
        keys.update(
            itertools.product(
                *((one.values[name],) if name in one.values else grid.values[name] for name in fixed)
            )
        )
    # An overwritten knob has the value it was given; of the others a value stands for its class.
    sizes = [{} if name in written else grid.sizes[name] for name in fixed]
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
