"""What the project knows of the kernel ``sm90a_small_m``."""

from __future__ import annotations

from kernel_space.core.kernel import Kernel
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm90a_small_m import budget, rules
from kernel_space.operators.svdquant_gemm.sm90a_small_m.config import SmallMConfig
from kernel_space.operators.svdquant_gemm.traffic import fill_bytes

KERNEL = Kernel(
    name=SmallMConfig.kernel,
    operator=GemmProblem.operator,
    archs=("sm_90a",),
    source="kernel_space.operators.svdquant_gemm.sm90a_small_m.kernel",
    config_class=SmallMConfig,
    rules=rules.__name__,
    knob_rules=rules.KNOB_RULES,
    canonical=rules.canonical,
    solve_stages=budget.solve_stages,
    budget=budget.budget,
    capacities=("smem",),
    layouts=budget.layouts,
    traffic=fill_bytes,
    machine="kernel_space.operators.svdquant_gemm.sm90a_parts.machine",
)
