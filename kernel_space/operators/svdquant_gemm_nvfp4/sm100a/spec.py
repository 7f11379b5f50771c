"""What the project knows of the kernel: as of ``svdquant_gemm``'s ``sm100a``, whose configs it has."""

from __future__ import annotations

from typing import Any

from kernel_space.core.kernel import Kernel
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.sm100a import budget
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from kernel_space.operators.svdquant_gemm.traffic import fill_bytes
from kernel_space.operators.svdquant_gemm.workspace import room
from kernel_space.operators.svdquant_gemm_nvfp4.problem import QuantizedGemmProblem
from kernel_space.operators.svdquant_gemm_nvfp4.sm100a import rules


def layouts(config: KernelConfigSm100a, problem_class: ProblemClass) -> Any:
    """What the kernel allocates; imports the DSL, needs an MLIR context."""
    from kernel_space.operators.svdquant_gemm_nvfp4.sm100a.layouts import QuantizingLayouts

    return QuantizingLayouts(config, problem_class)


KERNEL = Kernel(
    name=KernelConfigSm100a.kernel,
    operator=QuantizedGemmProblem.operator,
    archs=("sm_100a", "sm_103a"),
    source="kernel_space.operators.svdquant_gemm_nvfp4.sm100a.kernel",
    config_class=KernelConfigSm100a,
    rules=rules.__name__,
    knob_rules=rules.KNOB_RULES,
    canonical=rules.canonical,
    solve_stages=budget.solve_stages,
    budget=budget.budget,
    capacities=("tmem", "smem"),
    layouts=layouts,
    traffic=fill_bytes,
    room=room,
    machine="kernel_space.operators.svdquant_gemm_nvfp4.sm100a.machine",
)
