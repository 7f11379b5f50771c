"""How one problem is launched on one card: everything that does not change from call to call."""

from __future__ import annotations

import torch

from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES
from kernel_space.operators.svdquant_gemm.workspace import workspace_bytes, zeroed_bytes
from tuner.runtime.choice.choose import Choice
from tuner.runtime.load.loaded import Launchable
from tuner.runtime.load.trampoline import Static, make_launch
from tuner.runtime.load.workspace import Workspaces

# (sizes, strides, dtype) on the current device: what torch's own generated code allocates with, as torch.empty costs
# three times as much host time. Only builds with CUDA can call it.
new_tensor = torch._C._dynamo.guards._empty_strided_cuda


class Plan:
    """``launch`` of one problem (see ``trampoline``). Read-only once made, so threads share it.

    ``shape``, ``stride``, ``dtype``  of the output; ``choice``: the row and object behind it
    """

    __slots__ = (
        "_launchable",
        "static",
        "choice",
        "device",
        "dtype",
        "launch",
        "shape",
        "stride",
        "workspace_bytes",
        "workspaces",
        "zeroed_bytes",
    )

    def __init__(self, choice: Choice, launchable: Launchable, workspaces: Workspaces) -> None:
        problem = choice.problem
        self.choice = choice
        self.device = launchable.device
        self.shape, self.stride = (problem.m, problem.n), (problem.n, 1)
        self.dtype = TORCH_DTYPES[problem.out_dtype]
        self.workspaces = workspaces
        self.workspace_bytes = workspace_bytes(choice.config, problem)
        self.zeroed_bytes = zeroed_bytes(choice.config, problem)
        self._launchable = launchable  # its code is called
        self.static = Static(
            entry=launchable.entry,
            m=problem.m,
            n=problem.n,
            k=problem.k,
            max_active_clusters=launchable.grid(choice.config),
        )
        self.launch = make_launch(self.static)

    def output(self) -> torch.Tensor:
        """A new output, uninitialised; the current device must be the plan's."""
        return new_tensor(self.shape, self.stride, self.dtype)
