"""What the project knows of the kernel ``lora_tcgen05``."""

from __future__ import annotations

from kernel_space.core.kernel import Kernel
from kernel_space.operators.nvfp4_quantize.lora_tcgen05 import budget, rules
from kernel_space.operators.nvfp4_quantize.lora_tcgen05.config import LoraTcgen05Config
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem

KERNEL = Kernel(
    name=LoraTcgen05Config.kernel,
    operator=QuantizeProblem.operator,
    archs=("sm_100a", "sm_103a"),
    source="kernel_space.operators.nvfp4_quantize.lora_tcgen05.kernel",
    config_class=LoraTcgen05Config,
    rules=rules.__name__,
    knob_rules=rules.KNOB_RULES,
    canonical=rules.canonical,
    solve_stages=budget.solve_stages,
    budget=budget.budget,
    capacities=("tmem", "smem"),
    layouts=budget.layouts,
    machine="kernel_space.operators.nvfp4_quantize.machine",
)
