"""What the project knows of the kernel ``wide``."""

from __future__ import annotations

from kernel_space.core.kernel import Kernel
from kernel_space.operators.svdquant_gemm_16bit.problem import HalfGemmProblem
from kernel_space.operators.svdquant_gemm_16bit.traffic import fill_bytes
from kernel_space.operators.svdquant_gemm_16bit.wide import budget, rules
from kernel_space.operators.svdquant_gemm_16bit.wide.config import WideConfig

KERNEL = Kernel(
    name=WideConfig.kernel,
    operator=HalfGemmProblem.operator,
    archs=("sm_90a",),
    source="kernel_space.operators.svdquant_gemm_16bit.wide.kernel",
    config_class=WideConfig,
    rules=rules.__name__,
    knob_rules=rules.KNOB_RULES,
    canonical=rules.canonical,
    solve_stages=budget.solve_stages,
    budget=budget.budget,
    capacities=("smem",),
    layouts=budget.layouts,
    traffic=fill_bytes,
    room=budget.room,
    machine="kernel_space.operators.svdquant_gemm.sm90a_parts.machine",
)
