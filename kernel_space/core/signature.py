"""The arguments of an operator, as one ordered list: the only place that says what a kernel takes, and in which order.

    SIGNATURE = Signature(
        In("x", lambda problem: problem.x_dtype, lambda problem: (problem.m, problem.k)),
        Out("y", "fp16", lambda problem: (problem.m, problem.k)),
        Size("m"), Size("k"), Grid(), Stream(),
    )

Kernels declare their host function by ``abi``, callers put their values in order with ``values``, arenas and roofs take
the bytes of each tensor from ``tensors``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernel_space.core.arguments import Argument
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem

# Bytes of an element by the name of its dtype. NVFP4 codes and scale factors are bytes.
DTYPE_BYTES = {"uint8": 1, "int8": 1, "fp16": 2, "bf16": 2, "int32": 4, "fp32": 4, "fp64": 8, "int64": 8}

Dtype = str | Callable[[Any], str]  # of a problem
Shape = Callable[[Any], tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """A contiguous tensor: name of its dtype, sizes in elements."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return DTYPE_BYTES[self.dtype] * math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class In:
    """A tensor that is read. ``empties``: one without elements is passed as the address 0."""

    name: str
    dtype: Dtype
    shape: Shape
    empties: bool = False


@dataclasses.dataclass(frozen=True)
class Out:
    """A tensor that is written, every element, by every launch."""

    name: str
    dtype: Dtype
    shape: Shape


@dataclasses.dataclass(frozen=True)
class Workspace:
    """Memory of the launch's own, 256-byte aligned; how much says the kernel. The address is 0 where it needs none."""

    name: str = "workspace"


@dataclasses.dataclass(frozen=True)
class Size:
    """An int32: the size of the problem with this name."""

    name: str


@dataclasses.dataclass(frozen=True)
class Grid:
    """An int32: the clusters that the card holds at once, which bounds a persistent grid."""

    name: str = "max_active_clusters"


@dataclasses.dataclass(frozen=True)
class Stream:
    """The CUDA stream, always last."""

    name: str = "stream"


Tensor = In | Out
Part = In | Out | Workspace | Size | Grid | Stream
_POINTERS = (In, Out, Workspace)


class Signature:
    """Parts in the order of the host function's arguments. Raises ``InputError`` for a list that cannot be one."""

    def __init__(self, *parts: Part) -> None:
        self.parts = parts
        names = [part.name for part in parts]
        if twice := [name for name in names if names.count(name) > 1]:
            raise InputError(f"an argument must have a name of its own, {twice[0]} stands twice")
        if not parts or not isinstance(parts[-1], Stream):
            raise InputError("the last argument must be the stream")
        if not self.outputs:
            raise InputError("an operator must have an output")

    @functools.cached_property
    def abi(self) -> tuple[Argument, ...]:
        """The arguments of every host function of the operator."""
        return tuple(Argument(part.name, _kind(part)) for part in self.parts)

    @functools.cached_property
    def inputs(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts if isinstance(part, In))

    @functools.cached_property
    def outputs(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts if isinstance(part, Out))

    @functools.cached_property
    def pointers(self) -> tuple[str, ...]:
        """Tensors and workspace, in order."""
        return tuple(part.name for part in self.parts if isinstance(part, _POINTERS))

    @functools.cached_property
    def integers(self) -> tuple[str, ...]:
        """Sizes and grid, in order."""
        return tuple(part.name for part in self.parts if isinstance(part, Size | Grid))

    @functools.cached_property
    def workspace(self) -> str | None:
        """The name of the workspace; None for an operator without one."""
        return next((part.name for part in self.parts if isinstance(part, Workspace)), None)

    def require(self, arguments: Sequence[Argument] | None, prefix: str) -> None:
        """Raise ``InputError`` for an object of other arguments: calling it would read stray memory."""
        if tuple(arguments or ()) != self.abi:
            came, wanted = (
                ", ".join(f"{item.name} {item.kind}" for item in items) or "none"
                for items in (arguments or (), self.abi)
            )
            raise InputError(
                f"object {prefix} must take the operator's arguments ({wanted}), it takes {came}"
            )

    def part(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)

    def tensors(self, problem: Problem) -> dict[str, TensorSpec]:
        """Inputs and outputs of ``problem`` by name, in order."""
        return {
            part.name: TensorSpec(_dtype(part.dtype, problem), tuple(part.shape(problem)))
            for part in self.parts
            if isinstance(part, In | Out)
        }

    def values(
        self, problem: Problem, pointers: Mapping[str, Any], *, clusters: int, stream: Any = 0
    ) -> list[Any]:
        """What a call is given, in order. ``pointers``: tensors or addresses by name, the workspace's too.

        ``clusters``: at once on the card. Raises ``KeyError`` for a pointer that is missing.
        """
        found = []
        for part in self.parts:
            if isinstance(part, Stream):
                found.append(stream)
            elif isinstance(part, Grid):
                found.append(clusters)
            elif isinstance(part, Size):
                found.append(getattr(problem, part.name))
            else:
                found.append(pointers[part.name])
        return found


def _kind(part: Part) -> str:
    if isinstance(part, Stream):
        return "stream"
    return "int32" if isinstance(part, Size | Grid) else "pointer"


def _dtype(dtype: Dtype, problem: Problem) -> str:
    name = dtype if isinstance(dtype, str) else dtype(problem)
    if name not in DTYPE_BYTES:
        raise InputError(f"a dtype must be one of {', '.join(DTYPE_BYTES)}, got {name!r}")
    return name
