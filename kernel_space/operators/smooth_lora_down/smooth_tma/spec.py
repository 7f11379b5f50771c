"""What the project knows of the kernel ``smooth_tma``."""

from __future__ import annotations

from kernel_space.core.kernel import Kernel
from kernel_space.operators.nvfp4_quantize.lora_tma import budget
from kernel_space.operators.smooth_lora_down.problem import SmoothProblem
from kernel_space.operators.smooth_lora_down.smooth_tma import rules
from kernel_space.operators.smooth_lora_down.smooth_tma.config import SmoothTmaConfig

KERNEL = Kernel(
    name=SmoothTmaConfig.kernel,
    operator=SmoothProblem.operator,
    archs=("sm_90a",),
    source="kernel_space.operators.smooth_lora_down.smooth_tma.kernel",
    config_class=SmoothTmaConfig,
    rules=rules.__name__,
    knob_rules=rules.KNOB_RULES,
    solve_stages=budget.solve_stages,
    budget=budget.budget,
    capacities=("smem",),
    layouts=budget.layouts,
    machine="kernel_space.operators.nvfp4_quantize.machine",
)
