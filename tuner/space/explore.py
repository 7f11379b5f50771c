"""What a function looks at in a config: it runs on a config that reveals a knob only when it is read.

``explore`` forks at the first read of a knob over its choices; a run that ends without reading a knob has answered for
all of them. ``explore_region`` forks less: a knob that is read is *undecided* until the function asks something of it,
and a comparison forks only into its two outcomes, so that a run that asks ``split_k > 1`` has answered for 2 to 10.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from kernel_space.core.config import KernelConfig
from tuner.space.regions import EMPTY, Regions

Choices = Mapping[str, Sequence[Any]]  # knob -> values


class _Reader(Protocol):
    def read(self, name: str, config: Any) -> Any: ...


class _Knob:
    """A knob that has no value in a config before it is read. Not a ``property``: a config's own ``__dict__`` goes
    first, so that a knob that was replaced, or decided for the rest of the run, costs no call.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, config: Any, _: type) -> Any:
        return config.run.read(self.name, config)


@functools.cache
def _watched_class(config_class: type[KernelConfig]) -> type[KernelConfig]:
    """A config class whose knobs have no value before they are read."""

    def replace(self: Any, **changes: Any) -> Any:
        return _watched(config_class, {**vars(self), **changes, "replaced": {**self.replaced, **changes}})

    members = {name: _Knob(name) for name in config_class.knob_names()}
    return type(f"Watched{config_class.__name__}", (config_class,), {**members, "replace": replace})


def _watched(config_class: type[KernelConfig], members: dict[str, Any]) -> KernelConfig:
    """A config that reads from ``members["run"]``. ``replaced``: the knobs that ``replace`` has given a value."""
    self = object.__new__(_watched_class(config_class))  # type: ignore[arg-type]  # classes can be hashed
    self.__dict__.update(members)
    return self


def _run_on(
    function: Callable[[Any], Any], config_class: type[KernelConfig], run: _Reader, known: Mapping[str, Any]
) -> Any:
    return function(_watched(config_class, {**known, "run": run, "replaced": {}}))


# -- every value apart --


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One run: the values it read, what came out, and the knobs in the order of reading."""

    values: dict[str, Any]
    result: Any
    reads: list[str]


class _Run:
    """One execution: the values it has read so far, in order, and the branches it left for later."""

    def __init__(self, values: dict[str, Any], choices: Choices, pending: list[dict[str, Any]]) -> None:
        self.values, self.choices, self.pending = values, choices, pending
        self.reads: list[str] = []

    def read(self, name: str, _: Any) -> Any:
        """Go on with the first choice; the others wait with what was read before."""
        self.reads.append(name)
        if name not in self.values:
            value, *others = self.choices[name]
            self.pending += [{**self.values, name: other} for other in reversed(others)]
            self.values[name] = value
        return self.values[name]


def explore(
    function: Callable[[Any], Any], choices: Choices, config_class: type[KernelConfig]
) -> Iterator[Leaf]:
    """Run ``function`` once for every combination of values that it reads, in the order of ``choices``."""
    pending: list[dict[str, Any]] = [{}]
    while pending:
        run = _Run(pending.pop(), choices, pending)
        result = _run_on(function, config_class, run, {})
        yield Leaf(run.values, result, run.reads)


# -- only what is asked of a value --


class Part(NamedTuple):
    """What one run has answered for: the points of ``region`` that have ``values``.

    ``values``: knobs with one value left; in ``region`` they are open again (``Regions.cut``). ``limits``: values that
    are left of other knobs that were asked, which the run could not tell apart.
    """

    values: dict[str, Any]
    limits: dict[str, list[Any]]
    region: int
    result: Any = None

    @property
    def box(self) -> dict[str, list[Any]]:
        return self.limits | {name: [value] for name, value in self.values.items()}


class _Again(BaseException):
    """A run needs the value of an undecided knob: do it again, with one. No ``Exception``: nobody else may catch it."""


class _RegionRun:
    """One execution on the points of a region, and the branches it left for later.

    ``needed``: what was known, and the knob whose value was needed then; learned from runs that had to be done again.
    """

    def __init__(
        self, part: Part, regions: Regions, pending: list[Part], needed: set[tuple[str, ...]]
    ) -> None:
        self.values, self.limits, self.region, _ = part
        self.regions, self.pending, self.needed = regions, pending, needed

    def read(self, name: str, config: Any) -> Any:
        if name not in self.values:
            branches = self.regions.branches(self.region, name)
            known = (*self.values, name)
            if len(branches) > 1 and known not in self.needed:
                return _Undecided(self, name, known)
            self.go_on(name, [[value] for value in branches])
        value = vars(config)[name] = self.values[name]
        return value

    def go_on(self, name: str, groups: list[list[Any]]) -> None:
        """With the first group of values of ``name``; the others wait with what is known so far."""
        first, *others = [self.limited(name, group) for group in groups]
        self.pending += reversed(others)
        self.values, self.limits, self.region, _ = first

    def limited(self, name: str, values: list[Any]) -> Part:
        if len(values) > 1:
            region = self.regions.only(self.region, name, values)
            return Part(self.values, {**self.limits, name: values}, region)
        (value,) = values
        return Part({**self.values, name: value}, self.limits, self.regions.cut(self.region, name, value))

    def outcome(self, name: str, question: Callable[[Any], bool]) -> bool:
        """The answer for the values that ``name`` may still have; forks where it differs."""
        if name in self.values:
            return question(self.values[name])
        answers: dict[bool, list[Any]] = {}
        for value in self.regions.branches(self.region, name):
            answers.setdefault(bool(question(value)), []).append(value)
        if len(answers) > 1:
            self.go_on(name, list(answers.values()))
        return next(iter(answers))


class _Undecided:
    """A knob that was read: comparisons with plain values fork into their outcomes, all else needs the value."""

    __slots__ = ("_known", "_name", "_run")

    def __init__(self, run: _RegionRun, name: str, known: tuple[str, ...]) -> None:
        self._run, self._name, self._known = run, name, known

    def __bool__(self) -> bool:
        return self._run.outcome(self._name, bool)

    @property  # type: ignore[misc]  # nobody sets it
    def __class__(self) -> Any:
        """What ``isinstance`` asks when the type itself does not answer."""
        return _need(self)


def _comparison(compare: Callable[[Any, Any], Any]) -> Callable[[_Undecided, Any], bool]:
    def ask(self: _Undecided, other: Any) -> bool:
        if type(other) is _Undecided:
            _need(other)
        return self._run.outcome(self._name, lambda value: compare(value, other))

    return ask


def _need(undecided: Any, *_: Any) -> Any:
    """Do the run again with the value of ``undecided``."""
    if undecided._known in undecided._run.needed:
        raise AssertionError(f"{undecided._name} of one run must not be kept for another")
    undecided._run.needed.add(undecided._known)
    raise _Again


_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
_ARITHMETIC = (
    "add", "sub", "mul", "floordiv", "truediv", "mod", "divmod", "pow", "and", "or", "xor", "lshift", "rshift",
)  # fmt: skip
_OTHER = (
    "hash", "str", "repr", "format", "int", "index", "float", "neg", "pos", "abs", "invert", "len", "iter", "contains",
    "getitem", "getattr",
)  # fmt: skip
for _name in _COMPARED:
    setattr(_Undecided, f"__{_name}__", _comparison(getattr(operator, _name)))
for _name in (*_ARITHMETIC, *(f"r{name}" for name in _ARITHMETIC), *_OTHER):
    setattr(_Undecided, f"__{_name}__", _need)


def explore_region(
    function: Callable[[Any], Any], regions: Regions, region: int, config_class: type[KernelConfig]
) -> Iterator[Part]:
    """Run ``function`` on all points of ``region``, which may have none; the parts are disjoint and cover it.

    ``function`` must return nothing undecided: ``decided`` sees to that.
    """
    pending = [Part({}, {}, region)] if region != EMPTY else []
    needed: set[tuple[str, ...]] = set()
    while pending:
        run = _RegionRun(pending.pop(), regions, pending, needed)
        try:
            result = _run_on(function, config_class, run, run.values)
        except _Again:
            pending.append(Part(run.values, run.limits, run.region))
            continue
        yield Part(run.values, run.limits, run.region, result)


def decided(values: Mapping[str, Any]) -> dict[str, Any]:
    """``values``; asks for the value of those that are undecided."""
    for value in values.values():
        if type(value) is _Undecided:
            _need(value)
    return dict(values)
