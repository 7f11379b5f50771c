"""The kernel takes no shared memory and no tensor memory: its budget has no rows."""

from __future__ import annotations

import dataclasses
from typing import Any

from kernel_space.core.arch import Arch
from kernel_space.core.budget import Budget, Footprint
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.rows.config import RowsConfig
from kernel_space.operators.nvfp4_quantize.rows.layouts import RowsLayouts


@dataclasses.dataclass(frozen=True)
class RowsBudget(Budget):
    """What a configuration takes on one SM."""

    @property
    def slots(self) -> dict[str, int]:
        return {"one": 1}


def layouts(config: RowsConfig, problem_class: ProblemClass) -> Any:
    """What the kernel allocates: nothing."""
    return RowsLayouts(config, problem_class)


def budget(config: RowsConfig, problem_class: ProblemClass, arch: Arch) -> RowsBudget:
    """Budget of a config."""
    return RowsBudget(Footprint(**RowsLayouts(config, problem_class).footprint()), config, arch)
