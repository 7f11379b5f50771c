"""What the project knows of the kernel ``lora_wgmma``."""

from __future__ import annotations

from kernel_space.core.kernel import Kernel
from kernel_space.operators.nvfp4_quantize.lora_wgmma import budget, rules
from kernel_space.operators.nvfp4_quantize.lora_wgmma.config import LoraWgmmaConfig
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem

KERNEL = Kernel(
    name=LoraWgmmaConfig.kernel,
    operator=QuantizeProblem.operator,
    archs=("sm_90a",),
    source="kernel_space.operators.nvfp4_quantize.lora_wgmma.kernel",
    config_class=LoraWgmmaConfig,
    rules=rules.__name__,
    knob_rules=rules.KNOB_RULES,
    canonical=rules.canonical,
    solve_stages=budget.solve_stages,
    budget=budget.budget,
    capacities=("smem",),
    layouts=budget.layouts,
)
