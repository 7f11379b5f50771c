"""What the project knows of the kernel ``sliced``."""

from __future__ import annotations

from kernel_space.core.kernel import Kernel
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem
from kernel_space.operators.svdquant_linear_16bit.sliced import budget, rules
from kernel_space.operators.svdquant_linear_16bit.sliced.config import SlicedConfig
from kernel_space.operators.svdquant_linear_16bit.staged.traffic import fill_bytes
from kernel_space.operators.svdquant_linear_16bit.whole.spec import room

KERNEL = Kernel(
    name=SlicedConfig.kernel,
    operator=HalfLinearProblem.operator,
    archs=("sm_90a",),
    source="kernel_space.operators.svdquant_linear_16bit.sliced.kernel",
    config_class=SlicedConfig,
    rules=rules.__name__,
    knob_rules=rules.KNOB_RULES,
    solve_stages=budget.solve_stages,
    budget=budget.budget,
    capacities=("smem",),
    layouts=budget.layouts,
    room=room,
    traffic=fill_bytes,
    machine="kernel_space.operators.svdquant_linear_16bit.sliced.machine",
)
