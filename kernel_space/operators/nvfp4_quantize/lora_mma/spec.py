"""What the project knows of the kernel ``lora_mma``."""

from __future__ import annotations

from kernel_space.core.kernel import Kernel
from kernel_space.operators.nvfp4_quantize.lora_mma import budget, rules
from kernel_space.operators.nvfp4_quantize.lora_mma.config import LoraMmaConfig
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem

KERNEL = Kernel(
    name=LoraMmaConfig.kernel,
    operator=QuantizeProblem.operator,
    archs=("sm_90a", "sm_100a", "sm_103a"),
    source="kernel_space.operators.nvfp4_quantize.lora_mma.kernel",
    config_class=LoraMmaConfig,
    rules=rules.__name__,
    knob_rules=rules.KNOB_RULES,
    canonical=rules.canonical,
    solve_stages=budget.solve_stages,
    budget=budget.budget,
    capacities=("smem",),
    layouts=budget.layouts,
    machine="kernel_space.operators.nvfp4_quantize.machine",
)
