"""The memory of one check: operands, y between guard bytes, a workspace, and what a run leaves of them."""

from __future__ import annotations

import dataclasses

import torch

from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES
from kernel_space.operators.svdquant_gemm.operands import Operands, make_operands
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from kernel_space.operators.svdquant_gemm.workspace import workspace_bytes, zeroed_bytes

GUARD_BYTES = 4096
GUARD = 0xA5
POISON = 0xFF  # NaN in y and in the fp32 partial sums
ALIGNMENT = 256  # the kernel asks for 16 bytes of y and 256 of the workspace


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
    """What one launch of ``config`` on ``problem`` is given. ``operands.y`` lies in guarded memory."""

    def __init__(self, config: KernelConfigSm100a, problem: GemmProblem, seed: int) -> None:
        operands = make_operands(problem, seed, source="scales")
        dtype = TORCH_DTYPES[problem.out_dtype]
        self._y = Guarded(problem.m * problem.n * dtype.itemsize)
        y = self._y.bytes.view(dtype).view(problem.m, problem.n)
        self.operands: Operands = dataclasses.replace(operands, y=y)
        self._workspace = Guarded(max(ALIGNMENT, workspace_bytes(config, problem)))
        self._counters = zeroed_bytes(config, problem)
        self._inputs = {
            name: tensor.clone() for name, tensor in self.operands.tensors().items() if name != "y"
        }

    def poison(self) -> None:
        """As before the first launch: y and the partial sums are NaN, the counters zero."""
        self._y.bytes.fill_(POISON)
        self._workspace.bytes.fill_(POISON)
        self._workspace.bytes[: self._counters] = 0

    def arguments(self) -> tuple[torch.Tensor, ...]:
        """The pointers of the kernel in their order."""
        return (*self.operands.tensors().values(), self._workspace.bytes)

    def illegal_writes(self) -> list[str]:
        """Bytes changed that are not the kernel's, one line each."""
        found = []
        for name, guarded in (("y", self._y), ("workspace", self._workspace)):
            if (at := guarded.touched()) is not None:
                found.append(f"byte {at} of {name}, which has {guarded.bytes.numel()}, was overwritten")
        tensors = self.operands.tensors()
        for name, before in self._inputs.items():
            if not torch.equal(tensors[name].view(torch.uint8), before.view(torch.uint8)):
                found.append(f"operand {name} was overwritten")
        return found

    def left_counters(self) -> str:
        """What is wrong with the split-K counters after a launch; empty if all are zero again."""
        counters = self._workspace.bytes[: self._counters].view(torch.int32)
        left = counters.nonzero()
        if not len(left):
            return ""
        at = int(left[0])
        return (
            f"split-K counter {at} is {int(counters[at])} after the launch, must be 0: the next one is wrong"
        )

    def unwritten(self) -> int:
        """Elements of y that still hold the poison."""
        bits = self.operands.y.view(torch.int16)
        return int((bits == -1).sum())
