"""What the project knows of the kernel ``sm100a``."""

from __future__ import annotations

from kernel_space.core.kernel import Kernel
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a import budget, rules
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from kernel_space.operators.svdquant_gemm.traffic import fill_bytes
from kernel_space.operators.svdquant_gemm.workspace import room

KERNEL = Kernel(
    name=KernelConfigSm100a.kernel,
    operator=GemmProblem.operator,
    archs=("sm_100a", "sm_103a"),
    source="kernel_space.operators.svdquant_gemm.sm100a.kernel",
    config_class=KernelConfigSm100a,
    rules=rules.__name__,
    knob_rules=rules.KNOB_RULES,
    canonical=rules.canonical,
    solve_stages=budget.solve_stages,
    budget=budget.budget,
    capacities=("tmem", "smem"),
    layouts=budget.layouts,
    traffic=fill_bytes,
    room=room,
    machine="kernel_space.operators.svdquant_gemm.sm100a.machine",
)
