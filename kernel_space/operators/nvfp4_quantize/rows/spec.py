"""What the project knows of the kernel ``rows``."""

from __future__ import annotations

from kernel_space.core.kernel import Kernel
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem
from kernel_space.operators.nvfp4_quantize.rows import budget, rules
from kernel_space.operators.nvfp4_quantize.rows.config import RowsConfig

KERNEL = Kernel(
    name=RowsConfig.kernel,
    operator=QuantizeProblem.operator,
    archs=("sm_90a", "sm_100a", "sm_103a"),
    source="kernel_space.operators.nvfp4_quantize.rows.kernel",
    config_class=RowsConfig,
    rules=rules.__name__,
    knob_rules=rules.KNOB_RULES,
    canonical=rules.canonical,
    solve_stages=rules.solve_stages,
    budget=budget.budget,
    capacities=("smem",),
    layouts=budget.layouts,
)
