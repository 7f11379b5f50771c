"""The host function of a chain: it calls those of its links, one after the other."""

import importlib
import linecache
from collections.abc import Callable, Sequence
from typing import Any

import cuda.bindings.driver as cuda
from cutlass import Int32, cute

from kernel_space.composite.config import CompositeConfig
from kernel_space.composite.link import Link
from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.core.registry import kernel_of, operator
from kernel_space.core.signature import Grid, In, Out, Size, Stream, Workspace


def host_function(
    config: CompositeConfig, problem_class: ProblemClass, arch: Arch
) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of the signature.

    ``config`` must be resolved and legal.
    """
    whole = operator(problem_class.operator)
    assert whole.composed is not None  # this module is the source of chains alone
    calls = [
        _LinkCall(link, part, config, problem_class, arch)
        for link, part in zip(whole.composed.links, kernel_of(config, problem_class).parts, strict=True)
    ]
    types: dict[str, Any] = {}
    for call in calls:
        for name, value in call.types.items():
            types.setdefault(name, value)
    names = [part.name for part in whole.signature.parts]
    return _function(names, types, calls), tuple(types[name] for name in names)


def _function(names: Sequence[str], types: dict[str, Any], calls: Sequence[Callable[..., None]]) -> Any:
    """``def call(x, …, stream)``: the DSL reads names and types of arguments off a function, and its source."""
    text = f"def call({', '.join(names)}):\n" + "".join(
        f"    calls[{number}]({', '.join(f'{name}={name}' for name in names)})\n"
        for number in range(len(calls))
    )
    file = f"<chain of {len(calls)} host functions, {', '.join(names)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    scope: dict[str, Any] = {"calls": calls}
    exec(compile(text, file, "exec"), scope)
    scope["call"].__annotations__ = {name: _annotation(types[name]) for name in names}
    return cute.jit(scope["call"])


def _annotation(value: Any) -> Any:
    if isinstance(value, Int32):
        return Int32
    return cuda.CUstream if isinstance(value, cuda.CUstream) else cute.Pointer


class _LinkCall:
    """Calls one link's host function with its share of the chain's arguments. ``types``: of those, by their names."""

    def __init__(
        self, link: Link, part: Any, config: CompositeConfig, problem_class: ProblemClass, arch: Arch
    ) -> None:
        self.link, self.config = link, config.of(link.name)
        self.cluster_size = config.cluster_size
        module = importlib.import_module(part.source)
        self.function, self.given = module.host_function(self.config, link.problem_class(problem_class), arch)
        self.parts = link.of.signature.parts
        self.types = {
            name: value
            for part, value in zip(self.parts, self.given, strict=True)
            if (name := self._outer(part)) is not None
        }

    def _outer(self, part: Any) -> str | None:
        """What the chain calls an argument; None for a size that is the same in every problem."""
        if isinstance(part, Size):
            return self.link.fields.get(part.name)
        if isinstance(part, Grid):
            return Grid().name
        if isinstance(part, Workspace):
            return Workspace().name
        return Stream().name if isinstance(part, Stream) else self.link.called(part.name)

    def __call__(self, **values: Any) -> None:
        self.function(
            *(self._value(part, like, values) for part, like in zip(self.parts, self.given, strict=True))
        )

    def _value(self, part: Any, like: Any, values: dict[str, Any]) -> Any:
        name = self._outer(part)
        if name is None:
            return Int32(self.link.fixed[part.name])
        value = values[name]
        if isinstance(part, Grid):
            # The card holds so many of the chain's largest clusters at once.
            return _clusters(value, self.cluster_size, self.config.cluster_size) * self.config.ctas_per_sm
        if isinstance(part, In | Out) and value.dtype is not like.dtype:
            return cute.recast_ptr(value, dtype=like.dtype)  # bytes for one link, codes for another
        return value


def _clusters(count: Any, largest: int, own: int) -> Any:
    """Clusters of ``own`` CTAs where ``count`` of ``largest`` fit: of 49 clusters of three SMs 73 pairs."""
    if largest % own == 0:
        return count * (largest // own)
    return count * largest // own
