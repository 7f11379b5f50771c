"""What the project knows of the kernel ``lora_tma``."""

from __future__ import annotations

from kernel_space.core.kernel import Kernel
from kernel_space.operators.nvfp4_quantize.lora_tma import budget, rules
from kernel_space.operators.nvfp4_quantize.lora_tma.config import LoraTmaConfig
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem

KERNEL = Kernel(
    name=LoraTmaConfig.kernel,
    operator=QuantizeProblem.operator,
    archs=("sm_90a",),
    source="kernel_space.operators.nvfp4_quantize.lora_tma.kernel",
    config_class=LoraTmaConfig,
    rules=rules.__name__,
    knob_rules=rules.KNOB_RULES,
    canonical=rules.canonical,
    solve_stages=budget.solve_stages,
    budget=budget.budget,
    capacities=("smem",),
    layouts=budget.layouts,
    machine="kernel_space.operators.nvfp4_quantize.machine",
)
