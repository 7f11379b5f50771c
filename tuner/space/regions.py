"""Sets of points of a space as decision diagrams: exact sizes without walking the points.

A *region* is a number. ``EMPTY`` and ``ALL`` are two of them; every other one is a node, which asks one knob and has
a region for each of its choices. Knobs are asked in one order (``names``), equal nodes are one node, and a node whose
choices all lead to the same region is not made: so two regions are equal exactly if their numbers are, and each
operation is done once per pair of regions (Bryant, "Graph-Based Algorithms for Boolean Function Manipulation", 1986,
here with as many branches as a knob has choices). The order decides how many nodes there are, not what comes out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

EMPTY, ALL = 0, 1


class Regions:
    """Regions of the points that ``choices`` (knob -> values) span."""

    def __init__(self, choices: Mapping[str, Sequence[Any]], names: Sequence[str]) -> None:
        self.names = list(names)
        self.choices = [list(choices[name]) for name in names]
        self.sizes = [len(values) for values in self.choices]
        self.level = {name: level for level, name in enumerate(names)}
        self._levels = [len(self.names)] * 2  # of each region, the knob it asks; EMPTY and ALL ask none
        self._parts: list[tuple[int, ...]] = [(), ()]
        self._nodes: dict[tuple[int, tuple[int, ...]], int] = {}
        self._done: dict[tuple[Any, ...], int] = {}
        self._weights = {EMPTY: 0, ALL: 1}
        self._points: dict[int, int] = {}
        self._spans: dict[tuple[str, ...], int] = {}
        self._branches: dict[tuple[int, str], dict[Any, int]] = {}

    def points(self, region: int, known: Iterable[str] = ()) -> int:
        """Points of ``region``, which has one value of every knob in ``known`` (see ``cut``)."""
        names = tuple(known)
        if names not in self._spans:
            self._spans[names] = math.prod(self.sizes[self.level[name]] for name in names)
        if region not in self._points:
            above = math.prod(self.sizes[: self._levels[region]])
            self._points[region] = above * self._weight(region)
        return self._points[region] // self._spans[names]

    def branches(self, region: int, name: str) -> dict[Any, int]:
        """Choices of ``name`` in ``region``, each with the region that is left when it is known (``cut``)."""
        key = (region, name)
        if key not in self._branches:
            cuts = (self._cut(region, self.level[name], index) for index in range(len(self.values(name))))
            found = zip(self.values(name), cuts, strict=True)
            self._branches[key] = {value: rest for value, rest in found if rest != EMPTY}
        return self._branches[key]

    def cut(self, region: int, name: str, value: Any) -> int:
        """What ``region`` has of the other knobs with ``value`` of ``name``, which is open again."""
        return self.branches(region, name)[value]

    def values(self, name: str) -> list[Any]:
        return self.choices[self.level[name]]

    def only(self, region: int, name: str, values: Sequence[Any]) -> int:
        """Points of ``region`` that have one of ``values``."""
        key = ("only", region, name, *values)
        if key not in self._done:
            parts = tuple(int(value in values) for value in self.values(name))
            self._done[key] = self.both(region, self._node(self.level[name], parts))
        return self._done[key]

    def both(self, one: int, other: int) -> int:
        return self._combine(one, other, ALL)

    def either(self, one: int, other: int) -> int:
        return self._combine(one, other, EMPTY)

    def any_of(self, region: int, name: str) -> int:
        """``region`` and every point that differs from one of its points in ``name`` only."""
        return self._forget(region, self.level[name])

    def boxes(self, boxes: Iterable[Mapping[str, Sequence[Any]]]) -> int:
        """The union of boxes: points that have one of the values of every knob that a box names."""
        return self._boxes([{self.level[name]: set(box[name]) for name in box} for box in boxes])

    def random_point(self, region: int, generator: random.Random) -> dict[str, Any]:
        """A point drawn from ``region``: knob by knob, each choice with the share of points that have it."""
        point = {}
        for name in self.names:
            branches = self.branches(region, name)
            weights = [self.points(rest) for rest in branches.values()]
            ((point[name], region),) = generator.choices(list(branches.items()), weights)
        return point

    def _node(self, level: int, parts: tuple[int, ...]) -> int:
        if parts.count(parts[0]) == len(parts):
            return parts[0]
        key = (level, parts)
        if key not in self._nodes:
            self._nodes[key] = len(self._levels)
            self._levels.append(level)
            self._parts.append(parts)
        return self._nodes[key]

    def _weight(self, region: int) -> int:
        """Combinations, in ``region``, of the knobs from the one it asks on."""
        if region not in self._weights:
            after = self._levels[region] + 1
            self._weights[region] = sum(
                self._weight(part) * math.prod(self.sizes[after : self._levels[part]])
                for part in self._parts[region]
            )
        return self._weights[region]

    def _split(self, region: int, level: int) -> tuple[int, ...]:
        """What ``region``, which asks no knob before ``level``, is for each choice there."""
        return self._parts[region] if self._levels[region] == level else (region,) * self.sizes[level]

    def _cut(self, region: int, level: int, index: int) -> int:
        """What the other knobs may be when that at ``level`` has choice ``index``; any value of it is in the result."""
        own = self._levels[region]
        if own >= level:
            return self._parts[region][index] if own == level else region
        key = ("cut", region, level, index)
        if key not in self._done:
            parts = tuple(self._cut(part, level, index) for part in self._parts[region])
            self._done[key] = self._node(own, parts)
        return self._done[key]

    def _forget(self, region: int, level: int) -> int:
        own = self._levels[region]
        if own > level:
            return region
        key = ("forget", region, level)
        if key not in self._done:
            if own == level:
                result = EMPTY
                for part in self._parts[region]:
                    result = self.either(result, part)
            else:
                result = self._node(own, tuple(self._forget(part, level) for part in self._parts[region]))
            self._done[key] = result
        return self._done[key]

    def _combine(self, one: int, other: int, neutral: int) -> int:
        """Intersection, for which ``ALL`` is neutral, or union, for which ``EMPTY`` is."""
        if one == other or other == neutral:
            return one
        if one == neutral:
            return other
        if min(one, other) <= ALL:
            return ALL - neutral
        key = ("combine", min(one, other), max(one, other), neutral)
        if key not in self._done:
            level = min(self._levels[one], self._levels[other])
            pairs = zip(self._split(one, level), self._split(other, level), strict=True)
            self._done[key] = self._node(level, tuple(self._combine(*pair, neutral) for pair in pairs))
        return self._done[key]

    def _boxes(self, boxes: list[dict[int, set[Any]]]) -> int:
        if not boxes:
            return EMPTY
        if not all(boxes):
            return ALL
        level = min(level for box in boxes for level in box)
        parts = []
        for value in self.choices[level]:
            inside = (box for box in boxes if level not in box or value in box[level])
            parts.append(self._boxes([{at: box[at] for at in box if at != level} for box in inside]))
        return self._node(level, tuple(parts))
