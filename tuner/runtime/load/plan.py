"""How one problem is launched on one card: everything that does not change from call to call."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

import torch

from kernel_space.core import registry
from kernel_space.core.errors import InputError
from kernel_space.core.signature import Grid, Signature
from kernel_space.numerics.tensors import DTYPES
from tuner.runtime.choice.choice import Choice
from tuner.runtime.choice.contract import runtime_of
from tuner.runtime.load.early import captured
from tuner.runtime.load.loaded import Launchable
from tuner.runtime.load.trampoline import ALIGN, trampoline_of
from tuner.runtime.load.workspace import Workspaces

# (sizes, strides, dtype) on the current device: what torch's own generated code allocates with, as torch.empty costs
# three times as much host time. Only builds with CUDA can call it.
new_tensor = torch._C._dynamo.guards._empty_strided_cuda  # type: ignore[attr-defined]  # torch's stub lacks it


class Output(NamedTuple):
    """A contiguous tensor, as ``new_tensor`` makes it."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def with_leading(self, sizes: tuple[int, ...]) -> Output:
        """The same memory with ``sizes`` in place of all but the last size."""
        shape = (*sizes, self.shape[-1])
        return Output(shape, _strides(shape), self.dtype)


class Plan:
    """``launch`` of one problem (see ``trampoline``), ``captured`` on a stream that is being captured (see ``early``).
    Read-only once made, so threads share it.

    ``outputs``: what they look like, in the signature's order; ``unwritten``: numbers of those that this kernel leaves
    out; ``choice``: the row and object behind it
    """

    __slots__ = (
        "_launchable",
        "_nothing",
        "captured",
        "choice",
        "device",
        "launch",
        "outputs",
        "static",
        "unwritten",
        "workspace_bytes",
        "workspaces",
        "zeroed_bytes",
    )

    def __init__(self, choice: Choice, launchable: Launchable, workspaces: Workspaces) -> None:
        problem = choice.problem
        signature = registry.operator_of(problem).signature
        trampoline = trampoline_of(problem.operator)
        self.choice = choice
        self.device = launchable.device
        specs = signature.tensors(problem)
        self.outputs = tuple(
            Output(spec.shape, _strides(spec.shape), DTYPES[spec.dtype])
            for spec in (specs[name] for name in signature.outputs)
        )
        left_out = getattr(choice.config, "left_out", ())  # of a kernel in place of a chain
        self.unwritten = frozenset(signature.outputs.index(name) for name in left_out)
        self._nothing: torch.Tensor | None = None
        self.workspaces = workspaces
        kernel = registry.kernel_of(choice.config, problem)
        room = kernel.room(choice.config, problem)
        if room.size and signature.workspace is None:
            raise InputError(f"{kernel.full_name} needs a workspace, its operator's signature has none")
        self.workspace_bytes, self.zeroed_bytes = room.size, room.zeroed
        self._launchable = launchable  # its code is called
        self.static = trampoline.static(launchable.entry, **integers(signature, choice, launchable))
        self.launch = trampoline.launch(self.static)
        self.captured = captured(self.launch) if runtime_of(problem.operator).early else self.launch

    def outputs_for(self, unread: Collection[int]) -> tuple[Output | torch.Tensor, ...]:
        """Where nobody reads ``unread``: those that the kernel does not write either are one small tensor of the
        plan's, for a launch takes no address of nothing. The current device must be the plan's.
        """
        return tuple(
            self._nobodys() if number in unread and number in self.unwritten else one
            for number, one in enumerate(self.outputs)
        )

    def _nobodys(self) -> torch.Tensor:
        if self._nothing is None:
            self._nothing = new_tensor((ALIGN,), (1,), torch.uint8)
        return self._nothing

    def new_outputs(self, unread: Collection[int] = ()) -> tuple[torch.Tensor, ...]:
        """Uninitialised; the current device must be the plan's."""
        wanted = self.outputs_for(unread)
        return tuple(one if isinstance(one, torch.Tensor) else new_tensor(*one) for one in wanted)


def integers(signature: Signature, choice: Choice, launchable: Launchable) -> dict[str, int]:
    """Sizes of the problem by name, and the grid."""
    problem = choice.problem
    return {
        name: launchable.grid(choice.config)
        if isinstance(signature.part(name), Grid)
        else getattr(problem, name)
        for name in signature.integers
    }


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of a contiguous tensor, in elements."""
    return tuple(math.prod(max(size, 1) for size in shape[index + 1 :]) for index in range(len(shape)))
