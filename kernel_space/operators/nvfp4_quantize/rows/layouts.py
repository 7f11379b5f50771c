"""Shared memory of the kernel: none. Values stay in registers, and the four scales of a word meet by shuffles."""

from __future__ import annotations

from typing import Any

from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.rows.config import RowsConfig


class RowsLayouts:
    """From what the kernel allocates; needs no DSL."""

    def __init__(self, config: RowsConfig, problem_class: ProblemClass) -> None:
        self.config = config
        self.problem_class = problem_class

    def allocations(self) -> list[Any]:
        """Regions of shared memory, in order."""
        return []

    def footprint(self) -> dict[str, Any]:
        """Fields of ``budget.Footprint``."""
        return {"smem": ()}
