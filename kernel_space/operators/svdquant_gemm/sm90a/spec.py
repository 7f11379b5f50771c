"""What the project knows of the kernel ``sm90a``."""

from __future__ import annotations

from kernel_space.core.kernel import Kernel
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm90a import budget, rules
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import KernelConfigSm90a
from kernel_space.operators.svdquant_gemm.workspace import room

KERNEL = Kernel(
    name=KernelConfigSm90a.kernel,
    operator=GemmProblem.operator,
    archs=("sm_90a",),
    source="kernel_space.operators.svdquant_gemm.sm90a.kernel",
    config_class=KernelConfigSm90a,
    rules=rules.__name__,
    knob_rules=rules.KNOB_RULES,
    canonical=rules.canonical,
    solve_stages=budget.solve_stages,
    budget=budget.budget,
    capacities=("smem",),
    layouts=budget.layouts,
    room=room,
)
