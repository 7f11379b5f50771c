"""The space of a chain: the product of its links' spaces, and rules that speak of the links' problems."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from kernel_space.composite.config import CompositeConfig
from kernel_space.composite.kernel import no_workspace
from kernel_space.composite.link import Link
from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.kernel import Kernel
from kernel_space.core.operator import Chained
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernel as find_kernel
from kernel_space.core.registry import operator
from kernel_space.core.rules import Legal, Rejection, knob_rejection, legalize
from tuner.space import count as space_count
from tuner.space.bounded import AT_LEAST, AT_MOST, BoundedConfig
from tuner.space.count import Count, Legalize
from tuner.space.kernel import KernelSpace, Knob

WORKSPACE = "workspace"
Rules = Mapping[str, tuple[BoundedConfig, ...]]  # link -> its default rule


@dataclasses.dataclass(frozen=True)
class CompositeSpace(KernelSpace):
    """Of one kernel of a chain. The links' rules are apart, so points are counted link by link and multiplied."""

    @property
    def composed(self) -> Chained:
        return cast(Chained, operator(self.operator).composed)

    def legal_points(self, problem: Problem, arch: Arch, legalize: Legalize = legalize) -> Iterator[Legal]:
        """Every distinct legal config once, in the order of the links' own."""
        links = [self._link(number) for number in range(len(self.composed.links))]
        config_class = cast(type[CompositeConfig], self.config_class)
        streams = [functools.partial(link.legal_points, problem, arch) for link in links]
        for parts in _product(streams):
            joined = config_class.join(
                {link.link.name: part.config for link, part in zip(links, parts, strict=True)}
            )
            if isinstance(found := legalize(joined, problem, arch), Legal):
                yield found

    def count(self, problem: Problem, arch: Arch) -> Count:
        """Exact numbers of legal and, by rule, illegal points: what a search of the whole would find."""
        links = [self._link(number) for number in range(len(self.composed.links))]
        counts = [link.count(problem, arch) for link in links]
        capacities = find_kernel(self.operator, self.kernel).capacities
        return _multiplied(links, counts, [f"{resource}_capacity" for resource in capacities])

    def _link(self, number: int) -> _LinkSpace:
        link = self.composed.links[number]
        return _LinkSpace(
            link=link,
            kernel=self.composed.kernels[self.kernel][number],
            knobs={
                name.removeprefix(f"{link.name}_"): knob
                for name, knob in self.knobs.items()
                if name.startswith(f"{link.name}_")
            },
            followed=number + 1 < len(self.composed.links),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LinkSpace:
    """The share of one link in a chain's space. ``followed``: others come after it, so it may take no workspace."""

    link: Link
    kernel: Kernel
    knobs: Mapping[str, Knob]
    followed: bool

    @property
    def space(self) -> KernelSpace:
        return KernelSpace(operator=self.link.operator, kernel=self.kernel.name, knobs=self.knobs)

    def legalize(self, config: KernelConfig, problem: Problem, arch: Arch) -> Legal | Rejection:
        """As in the chain. ``problem``: the link's own."""
        if rejection := knob_rejection(config, problem, arch):
            return rejection
        if self.followed and (reason := no_workspace(self.kernel)(config, problem)):
            return Rejection(WORKSPACE, reason)
        return legalize(config, problem, arch)

    def legal_points(self, problem: Problem, arch: Arch) -> Iterator[Legal]:
        return space_count.legal_points(
            self.space.values, self.link.problem(problem), arch, self.legalize, self.kernel.config_class
        )

    def count(self, problem: Problem, arch: Arch) -> Count:
        rules = dict(self.kernel.knob_rules)
        if self.followed:
            rules[WORKSPACE] = no_workspace(self.kernel)
        spec = dataclasses.replace(self.kernel, knob_rules=rules)
        part = self.link.problem(problem)
        return space_count.count(self.space.values, part, arch, self.legalize, spec)


def _product(streams: Sequence[Callable[[], Iterator[Any]]]) -> Iterator[tuple[Any, ...]]:
    """As ``itertools.product``, but taking a few does not cost the rest."""
    if not streams:
        yield ()
        return
    for first in streams[0]():
        for others in _product(streams[1:]):
            yield (first, *others)


def _multiplied(links: Sequence[_LinkSpace], counts: Sequence[Count], capacities: Sequence[str]) -> Count:
    """Knob rules are asked link by link, then each resource of all links at once."""
    rejected: Counter[str] = Counter()
    raw = math.prod(count.raw for count in counts)
    spelled = [count.raw for count in counts]
    for number, (link, count) in enumerate(zip(links, counts, strict=True)):
        others = math.prod(spelled[:number]) * math.prod(one.raw for one in counts[number + 1 :])
        for rule, points in count.rejected.items():
            if rule not in capacities:
                rejected[f"{link.link.name}_{rule}"] += points * others
                spelled[number] -= points
    for resource in capacities:
        left = [
            points - count.rejected.get(resource, 0) for points, count in zip(spelled, counts, strict=True)
        ]
        rejected[resource] += math.prod(spelled) - math.prod(left)
        spelled = left
    return Count(
        raw=raw,
        spelled=math.prod(spelled),
        legal=math.prod(count.legal for count in counts),
        rejected={rule: points for rule, points in rejected.items() if points},
    )


def composite_spaces(
    composed: Chained, spaces: Sequence[Mapping[str, KernelSpace]], rules: Rules
) -> dict[str, KernelSpace]:
    """Kernel of the chain -> its space, for those whose links all have one. ``spaces``: of each link by kernel."""
    found: dict[str, KernelSpace] = {}
    for name, kernels in composed.kernels.items():
        if not all(kernel.name in own for kernel, own in zip(kernels, spaces, strict=True)):
            continue
        parts = {
            link.name: own[kernel.name]
            for link, kernel, own in zip(composed.links, kernels, spaces, strict=True)
        }
        found[name] = CompositeSpace(
            operator=composed.operator,
            kernel=name,
            knobs={f"{link}_{knob}": one for link, part in parts.items() for knob, one in part.knobs.items()},
            designs=tuple(_designs(composed, name, parts, rules)),
        )
    return found


def composite_rule(composed: Chained, rules: Rules) -> tuple[BoundedConfig, ...]:
    """The default of every link: the first pair that holds is the first of each that holds."""
    return tuple(_joined(composed, rules.values()))


def _designs(
    composed: Chained, name: str, parts: Mapping[str, KernelSpace], rules: Rules
) -> Iterator[BoundedConfig]:
    """Each design of a link with the others' defaults, as far as these are of the kernels at hand."""
    for link, part in parts.items():
        choices = [
            part.designs
            if other == link
            else [one for one in rule if one.config.kernel == parts[other].kernel]
            for other, rule in rules.items()
        ]
        yield from _joined(composed, choices)


def _joined(composed: Chained, choices: Iterable[Iterable[BoundedConfig]]) -> Iterator[BoundedConfig]:
    """Every combination of ``choices``, of each link one, that can hold."""
    example = operator(composed.operator).problem
    whole = example.parse(example.example)
    for entries in itertools.product(*choices):
        pairs = list(zip(composed.links, entries, strict=True))
        if all(_constant_holds(link, entry, whole) for link, entry in pairs):
            yield _join(composed, entries)


def _constant_holds(link: Link, entry: BoundedConfig, whole: Problem) -> bool:
    """Whether the conditions hold that ask for what is the same in every problem of the chain."""
    constant = {name: bound for name, bound in entry.when.items() if _field(name) not in link.fields}
    return dataclasses.replace(entry, when=constant).holds(link.problem(whole))


def _field(condition: str) -> str:
    return condition.removesuffix(AT_LEAST).removesuffix(AT_MOST)


def _join(composed: Chained, entries: Sequence[BoundedConfig]) -> BoundedConfig:
    name = composed.name_of([entry.config.kernel for entry in entries])
    config_class = cast(type[CompositeConfig], find_kernel(composed.operator, name).config_class)
    when: dict[str, int | str] = {}
    for link, entry in zip(composed.links, entries, strict=True):
        for condition, bound in entry.when.items():
            if (field := _field(condition)) in link.fields:
                _tighten(when, link.fields[field] + condition.removeprefix(field), bound)
    config = config_class.join(
        {link.name: entry.config for link, entry in zip(composed.links, entries, strict=True)}
    )
    return BoundedConfig(when, config, "; ".join(dict.fromkeys(entry.reason for entry in entries)))


def _tighten(when: dict[str, int | str], condition: str, bound: int | str) -> None:
    known = when.get(condition, bound)
    if isinstance(known, int) and isinstance(bound, int):
        when[condition] = max(known, bound) if condition.endswith(AT_LEAST) else min(known, bound)
    else:
        when[condition] = bound
