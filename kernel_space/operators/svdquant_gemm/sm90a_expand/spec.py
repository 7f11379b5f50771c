"""What the project knows of the kernel ``sm90a_expand``."""

from __future__ import annotations

from kernel_space.core.kernel import Kernel
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm90a_expand import budget, rules
from kernel_space.operators.svdquant_gemm.sm90a_expand.config import ExpandConfig
from kernel_space.operators.svdquant_gemm.traffic import fill_bytes
from kernel_space.operators.svdquant_gemm.workspace import room

KERNEL = Kernel(
    name=ExpandConfig.kernel,
    operator=GemmProblem.operator,
    archs=("sm_90a",),
    source="kernel_space.operators.svdquant_gemm.sm90a_expand.kernel",
    config_class=ExpandConfig,
    rules=rules.__name__,
    knob_rules=rules.KNOB_RULES,
    canonical=rules.canonical,
    solve_stages=budget.solve_stages,
    budget=budget.budget,
    capacities=("smem",),
    layouts=budget.layouts,
    traffic=fill_bytes,
    room=room,
    machine="kernel_space.operators.svdquant_gemm.sm90a_parts.machine",
)
