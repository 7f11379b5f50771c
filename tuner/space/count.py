"""Exact counts and enumeration of a space too large to walk (10^9 points), from what legality looks at.

The points that are left after each knob rule are a region (``regions.py``); a rule runs once for all points that it
cannot tell apart in what the rules before it left (``space/explore.py``), and so does what resolves stages and budgets
after the rules. What they look at is observed, not assumed; drawn points of drawn parts are put to ``legalize`` itself.

Distinct kernels are the union of what the legal parts resolve to: a knob that was overwritten is one value there
(``_distinct``).
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.kernel import Kernel, Rule
from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal, Rejection
from tuner.space.explore import Choices, Part, decided, explore, explore_region
from tuner.space.regions import ALL, Regions

PROBES = 100  # random points for the order of knobs, and drawn points of the parts of each rule
RESOLVED_PROBES = 1000  # of the parts that the rules leave

Legalize = Callable[[KernelConfig, Problem, Arch], Legal | Rejection]


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


def total(counts: Iterable[Count]) -> Count:
    """Of several kernels; points that rules of one name reject are added up."""
    found, rejected = list(counts), Counter[str]()
    for one in found:
        rejected.update(one.rejected)
    return Count(
        raw=sum(one.raw for one in found),
        spelled=sum(one.spelled for one in found),
        legal=sum(one.legal for one in found),
        rejected=dict(rejected),
    )


def legal_points(
    choices: Choices,
    problem: Problem,
    arch: Arch,
    legalize: Legalize,
    config_class: type[KernelConfig],
) -> Iterator[Legal]:
    """Every distinct legal kernel once, in the order of ``choices``; takes the first ones without the rest."""
    seen: set[str] = set()
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


def count(choices: Choices, problem: Problem, arch: Arch, legalize: Legalize, spec: Kernel) -> Count:
    """Exact numbers of legal and rejected points. ``legalize`` must be what ``spec`` says: all knob rules, in order,
    then stages and budget; it is asked at drawn points, and ``AssertionError`` says where it differs.
    """
    return _Counting(choices, problem, arch, legalize, spec).count()


@dataclasses.dataclass(frozen=True)
class _Kernels:
    """What a part resolves to: knobs that have one value, given or as it was; the others as in ``region``."""

    values: dict[str, Any]
    replaced: frozenset[str]
    region: int


class _Counting:
    """One count: the regions, and the numbers so far."""

    def __init__(
        self, choices: Choices, problem: Problem, arch: Arch, legalize: Legalize, spec: Kernel
    ) -> None:
        self.choices, self.problem, self.arch = choices, problem, arch
        self.legalize, self.spec = legalize, spec
        self.generator = random.Random(0)
        self.regions = Regions(choices, self._order())
        self.rejected: Counter[str] = Counter()

    def count(self) -> Count:
        left = ALL
        for name in self.spec.knob_rules:
            left = self._after_rule(name, left)
        parts = list(explore_region(self._resolve, self.regions, left, self.spec.config_class))
        self._put_to_legalize(parts, RESOLVED_PROBES)
        spelled, kernels = 0, []
        for part in parts:
            if isinstance(part.result, str):
                self.rejected[part.result] += self._points(part)
            else:
                spelled += self._points(part)
                kernels.append(self._kernels(part))
        legal = _distinct(self.regions, kernels)
        return Count(raw=self.regions.points(ALL), spelled=spelled, legal=legal, rejected=dict(self.rejected))

    def _order(self) -> list[str]:
        """Knobs that many rules look at first: a region then has fewer nodes."""
        reads: Counter[str] = Counter()
        for _ in range(PROBES):
            point = {name: [self.generator.choice(values)] for name, values in self.choices.items()}
            for rule in self.spec.knob_rules.values():

                def asked(config: Any, rule: Rule = rule) -> str | None:
                    return rule(config, self.problem)

                (leaf,) = explore(asked, point, self.spec.config_class)
                reads.update(set(leaf.reads))
        return sorted(self.choices, key=lambda name: -reads[name])

    def _points(self, part: Part) -> int:
        return self.regions.points(part.region, part.values)

    def _after_rule(self, name: str, region: int) -> int:
        """What a knob rule leaves of ``region``; counts the rest under its name."""
        rule, regions = self.spec.knob_rules[name], self.regions
        parts = [
            part._replace(result=name if part.result else None)
            for part in explore_region(
                lambda config: bool(rule(config, self.problem)), regions, region, self.spec.config_class
            )
        ]
        rejected = [part for part in parts if part.result]
        self._put_to_legalize(rejected, PROBES)
        left = regions.both(region, regions.boxes(part.box for part in parts if not part.result))
        points = sum(self._points(part) for part in rejected)
        if regions.points(region) != regions.points(left) + points:
            raise AssertionError(f"rule {name} must say yes or no to every point, once")
        if points:
            self.rejected[name] = points
        return left

    def _resolve(self, config: KernelConfig) -> str | dict[str, Any]:
        """What ``legalize`` does after the knob rules: the capacity that is exceeded, or the knobs with new values."""
        problem_class = self.problem.problem_class
        resolved = self.spec.canonical(config, self.problem)
        resolved = self.spec.solve_stages(resolved, problem_class, self.arch)
        taken = self.spec.budget(resolved, problem_class, self.arch)
        for resource in self.spec.capacities:
            if taken.over(resource) > 0:
                return f"{resource}_capacity"
        return decided(resolved.replaced)

    def _put_to_legalize(self, parts: list[Part], probes: int) -> None:
        """Hold drawn points of drawn ``parts`` against ``legalize``, which reads values, not what is asked of them."""
        for part in self.generator.choices(parts, k=probes) if parts else ():
            point = {**self.regions.random_point(part.region, self.generator), **part.values}
            one = {name: [value] for name, value in point.items()}
            (leaf,) = explore(
                lambda config: self.legalize(config, self.problem, self.arch), one, self.spec.config_class
            )
            rejected = isinstance(leaf.result, Rejection)
            found = leaf.result.rule if rejected else leaf.result.config.replaced
            if found != part.result:
                raise AssertionError(
                    f"legalize must ask every knob rule, in order, before anything else: it finds {found} where the "
                    f"rules find {part.result}, at {point}"
                )

    def _kernels(self, part: Part) -> _Kernels:
        region = part.region
        for name in part.result:
            region = self.regions.any_of(region, name)
        return _Kernels({**part.values, **part.result}, frozenset(part.result), region)


def _distinct(regions: Regions, kernels: list[_Kernels]) -> int:
    """Distinct kernels in the union of ``kernels``; what differs in a knob that has one value in all is different."""
    common = [name for name in regions.names if all(name in one.values for one in kernels)]
    groups: dict[tuple[Any, ...], list[_Kernels]] = {}
    for one in kernels:
        groups.setdefault(tuple(one.values[name] for name in common), []).append(one)
    return sum(_distinct_of_group(regions, group, common) for group in groups.values())


def _distinct_of_group(regions: Regions, group: list[_Kernels], common: list[str]) -> int:
    """Knobs that any of ``group`` has overwritten are spelled out in all of it, as the value may be no choice; the
    others are in the regions, whose union has no point twice.
    """
    spelled = sorted(frozenset().union(*(one.replaced for one in group)) - {*common})
    unions: dict[tuple[Any, ...], int] = {}
    for one in group:
        for values, region in _spell_out(regions, one, spelled, common):
            unions[values] = regions.either(unions[values], region) if values in unions else region
    return sum(regions.points(region, [*common, *spelled]) for region in unions.values())


def _spell_out(
    regions: Regions, one: _Kernels, spelled: list[str], common: list[str]
) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Values of the knobs in ``spelled``, with the region of all others but ``common``."""
    region = one.region
    for name in one.values.keys() - {*common, *spelled}:
        region = regions.only(region, name, [one.values[name]])
    found: list[tuple[tuple[Any, ...], int]] = [((), region)]
    for name in spelled:
        found = [
            ((*values, value), rest)
            for values, region in found
            for value, rest in (
                [(one.values[name], region)] if name in one.values else regions.branches(region, name).items()
            )
        ]
    return iter(found)
