"""What the project knows of the kernel ``sliced_nvfp4``."""

from __future__ import annotations

from kernel_space.core.kernel import Kernel
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from kernel_space.operators.svdquant_linear.sliced_nvfp4 import budget, rules
from kernel_space.operators.svdquant_linear.sliced_nvfp4.config import SlicedNvfp4Config
from kernel_space.operators.svdquant_linear_16bit.staged.traffic import fill_bytes

KERNEL = Kernel(
    name=SlicedNvfp4Config.kernel,
    operator=LinearProblem.operator,
    archs=("sm_90a",),
    source="kernel_space.operators.svdquant_linear.sliced_nvfp4.kernel",
    config_class=SlicedNvfp4Config,
    rules=rules.__name__,
    knob_rules=rules.KNOB_RULES,
    solve_stages=budget.solve_stages,
    budget=budget.budget,
    capacities=("smem",),
    layouts=budget.layouts,
    room=budget.room,
    traffic=fill_bytes,
    machine="kernel_space.operators.svdquant_linear.sliced_nvfp4.machine",
)
