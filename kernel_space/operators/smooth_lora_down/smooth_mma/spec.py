"""What the project knows of the kernel ``smooth_mma``."""

from __future__ import annotations

from kernel_space.core.kernel import Kernel
from kernel_space.operators.nvfp4_quantize.lora_mma import budget
from kernel_space.operators.smooth_lora_down.problem import SmoothProblem
from kernel_space.operators.smooth_lora_down.smooth_mma import rules
from kernel_space.operators.smooth_lora_down.smooth_mma.config import SmoothMmaConfig

KERNEL = Kernel(
    name=SmoothMmaConfig.kernel,
    operator=SmoothProblem.operator,
    archs=("sm_90a",),
    source="kernel_space.operators.smooth_lora_down.smooth_mma.kernel",
    config_class=SmoothMmaConfig,
    rules=rules.__name__,
    knob_rules=rules.KNOB_RULES,
    solve_stages=budget.solve_stages,
    budget=budget.budget,
    capacities=("smem",),
    layouts=budget.layouts,
    machine="kernel_space.operators.nvfp4_quantize.machine",
)
