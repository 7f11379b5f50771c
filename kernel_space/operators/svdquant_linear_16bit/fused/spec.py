"""What the project knows of the kernel ``fused``."""

from __future__ import annotations

from kernel_space.core.kernel import Kernel
from kernel_space.operators.svdquant_gemm_16bit.traffic import fill_bytes
from kernel_space.operators.svdquant_linear_16bit.fused import budget, rules
from kernel_space.operators.svdquant_linear_16bit.fused.config import FusedConfig
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem

KERNEL = Kernel(
    name=FusedConfig.kernel,
    operator=HalfLinearProblem.operator,
    archs=("sm_90a",),
    source="kernel_space.operators.svdquant_linear_16bit.fused.kernel",
    config_class=FusedConfig,
    rules=rules.__name__,
    knob_rules=rules.KNOB_RULES,
    canonical=rules.canonical,
    solve_stages=budget.solve_stages,
    budget=budget.budget,
    capacities=("smem",),
    layouts=budget.layouts,
    room=budget.room,
    traffic=fill_bytes,
    machine="kernel_space.operators.svdquant_linear_16bit.fused.machine",
)
