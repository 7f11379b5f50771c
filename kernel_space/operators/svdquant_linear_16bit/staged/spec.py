"""What the project knows of the kernel ``staged``."""

from __future__ import annotations

from kernel_space.core.kernel import Kernel
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem
from kernel_space.operators.svdquant_linear_16bit.staged import budget, rules
from kernel_space.operators.svdquant_linear_16bit.staged.config import StagedConfig
from kernel_space.operators.svdquant_linear_16bit.staged.traffic import fill_bytes

KERNEL = Kernel(
    name=StagedConfig.kernel,
    operator=HalfLinearProblem.operator,
    archs=("sm_90a",),
    source="kernel_space.operators.svdquant_linear_16bit.staged.kernel",
    config_class=StagedConfig,
    rules=rules.__name__,
    knob_rules=rules.KNOB_RULES,
    solve_stages=budget.solve_stages,
    budget=budget.budget,
    capacities=("smem",),
    layouts=budget.layouts,
    room=budget.room,
    traffic=fill_bytes,
    machine="kernel_space.operators.svdquant_linear_16bit.staged.machine",
)
