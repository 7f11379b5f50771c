"""What the project knows of the kernel ``smooth_wgmma``."""

from __future__ import annotations

from kernel_space.core.kernel import Kernel
from kernel_space.operators.nvfp4_quantize.lora_wgmma import budget
from kernel_space.operators.smooth_lora_down.problem import SmoothProblem
from kernel_space.operators.smooth_lora_down.smooth_wgmma import rules
from kernel_space.operators.smooth_lora_down.smooth_wgmma.config import SmoothWgmmaConfig

KERNEL = Kernel(
    name=SmoothWgmmaConfig.kernel,
    operator=SmoothProblem.operator,
    archs=("sm_90a",),
    source="kernel_space.operators.smooth_lora_down.smooth_wgmma.kernel",
    config_class=SmoothWgmmaConfig,
    rules=rules.__name__,
    knob_rules=rules.KNOB_RULES,
    solve_stages=budget.solve_stages,
    budget=budget.budget,
    capacities=("smem",),
    layouts=budget.layouts,
)
