"""How one problem is launched on one card: everything that does not change from call to call."""

from __future__ import annotations

import ctypes

import torch

from kernel_space.inputs import TORCH_DTYPES
from kernel_space.workspace import workspace_bytes, zeroed_bytes
from tuner.runtime.choose import Choice
from tuner.runtime.lasting import lasting
from tuner.runtime.loaded import Launchable
from tuner.runtime.trampoline import Static, trampoline
from tuner.runtime.workspace import Workspaces


class Plan:
    """``launch`` of one problem. Read-only once made, so threads share it.

    ``shape``, ``dtype``  of the output; ``choice``: the row and object behind it
    """

    __slots__ = (
        "_launchable",
        "_static",
        "_template",
        "choice",
        "device",
        "dtype",
        "launch",
        "shape",
        "static",
        "workspace_bytes",
        "workspaces",
        "zeroed_bytes",
    )

    def __init__(self, choice: Choice, launchable: Launchable, workspaces: Workspaces) -> None:
        problem = choice.problem
        self.choice = choice
        self.device = launchable.device
        self.shape = torch.Size((problem.m, problem.n))
        self.dtype = TORCH_DTYPES[problem.out_dtype]
        self.workspaces = workspaces
        self.workspace_bytes = workspace_bytes(choice.config, problem)
        self.zeroed_bytes = zeroed_bytes(choice.config, problem)
        self.launch = trampoline()
        self._launchable = launchable  # its code is called
        self._static = Static(
            entry=launchable.entry,
            m=problem.m,
            n=problem.n,
            k=problem.k,
            max_active_clusters=choice.config.max_active_clusters(launchable.sm_count),
        )
        self.static = ctypes.addressof(self._static)
        # empty_like costs half of what empty does; an expanded number stands for the shape without its memory.
        on = torch.device("cuda", self.device)
        self._template = lasting(lambda: torch.empty(1, dtype=self.dtype, device=on)).expand(self.shape)

    def output(self) -> torch.Tensor:
        """A new output, uninitialised."""
        return torch.empty_like(self._template, memory_format=torch.contiguous_format)
