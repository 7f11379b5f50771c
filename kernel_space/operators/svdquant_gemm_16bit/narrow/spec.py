"""What the project knows of the kernel ``narrow``."""

from __future__ import annotations

from kernel_space.core.kernel import Kernel
from kernel_space.operators.svdquant_gemm_16bit.narrow import budget, rules
from kernel_space.operators.svdquant_gemm_16bit.narrow.config import NarrowConfig
from kernel_space.operators.svdquant_gemm_16bit.problem import HalfGemmProblem
from kernel_space.operators.svdquant_gemm_16bit.traffic import fill_bytes

KERNEL = Kernel(
    name=NarrowConfig.kernel,
    operator=HalfGemmProblem.operator,
    archs=("sm_90a",),
    source="kernel_space.operators.svdquant_gemm_16bit.narrow.kernel",
    config_class=NarrowConfig,
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
