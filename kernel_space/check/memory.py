"""The memory of one check: operands, outputs between guard bytes, a workspace, and what a run leaves of them."""

from __future__ import annotations

import torch

from kernel_space.core.config import KernelConfig
from kernel_space.core.operator import Comparison
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernel_of, operator_of
from kernel_space.numerics.tensors import bytes_of, element_bytes, require_specs, view_as

GUARD_BYTES = 4096
GUARD = 0xA5
# NaN in every format and -1 in integers; and what neither is, for outputs whose right value may be all ones.
POISONS = (0xFF, 0x7F)
ALIGNMENT = 256  # what kernels may ask of a workspace; of other pointers less


class Guarded:
    """``size`` bytes, aligned, between two guard regions of ``GUARD_BYTES``."""

    def __init__(self, size: int) -> None:
        self._whole = torch.full((size + 2 * GUARD_BYTES + ALIGNMENT,), GUARD, dtype=torch.uint8)
        self._start = GUARD_BYTES + -(self._whole.data_ptr() + GUARD_BYTES) % ALIGNMENT
        self.bytes = self._whole[self._start : self._start + size]

    def touched(self) -> int | None:
        """The first guard byte that changed, relative to the start of the bytes inside; None if none did."""
        changed = self._whole != GUARD
        changed[self._start : self._start + self.bytes.numel()] = False
        where = changed.nonzero()
        return int(where[0]) - self._start if len(where) else None


class CheckMemory:
    """What one launch of ``config`` on ``problem`` is given. ``tensors``: inputs and outputs by name, contiguous.

    Inputs are of the operator's last source, the least like those of a layer. Raises ``InputError`` when the operator
    does not give the inputs that its signature names.
    """

    def __init__(self, config: KernelConfig, problem: Problem, seed: int) -> None:
        self._operator, self._config, self._problem = operator_of(problem), config, problem
        signature = self._operator.signature
        specs = signature.tensors(problem)
        inputs = self._operator.inputs(problem, seed, self._operator.sources[-1], "cpu")
        require_specs(inputs, {name: specs[name] for name in signature.inputs})
        self._outputs = {name: Guarded(specs[name].nbytes) for name in signature.outputs}
        outputs = {name: view_as(room.bytes, specs[name]) for name, room in self._outputs.items()}
        self.tensors = {name: inputs[name] if name in inputs else outputs[name] for name in specs}
        self._before = {name: inputs[name].clone() for name in signature.inputs}
        room = kernel_of(config, problem).room(config, problem)
        self.workspace = Guarded(room.size) if signature.workspace and room.size else None
        self._zeroed = room.zeroed

    def poison(self, run: int = 0) -> None:
        """As before the first launch: outputs and workspace hold no number, the counters zero. Every other ``run``
        finds other bytes in the outputs.
        """
        for room in self._outputs.values():
            room.bytes.fill_(POISONS[run % 2])
        self._poison = POISONS[run % 2]
        if self.workspace is not None:
            self.workspace.bytes.fill_(POISONS[0])
            self.workspace.bytes[: self._zeroed] = 0

    def unfinished(self) -> list[torch.Tensor]:
        """What the launch before may still be writing when this one begins: all but the weights."""
        weights = self._operator.weights
        tensors = [tensor for name, tensor in self.tensors.items() if name not in weights]
        return tensors if self.workspace is None else [*tensors, self.workspace.bytes]

    def values(self, clusters: int) -> list[object]:
        """What the host function is given, in order; ``clusters``: at once on the chip."""
        workspace = {} if self.workspace is None else {self._workspace_name: self.workspace.bytes}
        pointers = {name: 0 for name in self._operator.signature.pointers} | self.tensors | workspace
        return self._operator.signature.values(self._problem, pointers, clusters=clusters)

    @property
    def _workspace_name(self) -> str:
        return self._operator.signature.workspace or ""

    def outputs(self) -> dict[str, torch.Tensor]:
        """A copy of the bytes of every output that the kernel writes: uint8 [elements, bytes of one]."""
        left_out = getattr(self._config, "left_out", ())  # of a kernel in place of a chain
        return {
            name: element_bytes(self.tensors[name]).clone() for name in self._outputs if name not in left_out
        }

    def check(self) -> dict[str, Comparison]:
        """How each output compares with the operator's oracle."""
        return self._operator.compare(self._problem, self.tensors, self._config)

    def illegal_writes(self) -> list[str]:
        """Bytes changed that are not the kernel's, one line each."""
        found = []
        workspace = {} if self.workspace is None else {self._workspace_name: self.workspace}
        for name, guarded in {**self._outputs, **workspace}.items():
            if (at := guarded.touched()) is not None:
                found.append(f"byte {at} of {name}, which has {guarded.bytes.numel()}, was overwritten")
        for name, before in self._before.items():
            if not torch.equal(bytes_of(self.tensors[name]), bytes_of(before)):
                found.append(f"operand {name} was overwritten")
        return found

    def left_counters(self) -> str:
        """What is wrong with the zeroed part of the workspace after a launch; empty if it is zero again."""
        if self.workspace is None:
            return ""
        left = self.workspace.bytes[: self._zeroed].nonzero()
        if not len(left):
            return ""
        at = int(left[0]) // 4
        counter = int.from_bytes(self.workspace.bytes[4 * at : 4 * at + 4].numpy().tobytes(), "little")
        where = f"counter {at} of the {self._workspace_name}"
        return f"{where} is {counter} after the launch, must be 0: the next one is wrong"

    def unwritten(self, name: str) -> int:
        """Elements of an output that still hold the poison."""
        return int((element_bytes(self.tensors[name]) == self._poison).all(dim=1).sum())
