"""What the project knows of the kernel ``whole_nvfp4``."""

from __future__ import annotations

from kernel_space.core.kernel import Kernel
from kernel_space.operators.svdquant_gemm_16bit.traffic import fill_bytes
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from kernel_space.operators.svdquant_linear.whole_nvfp4 import rules
from kernel_space.operators.svdquant_linear.whole_nvfp4.config import WholeNvfp4Config
from kernel_space.operators.svdquant_linear_16bit.whole import budget
from kernel_space.operators.svdquant_linear_16bit.whole.spec import room

KERNEL = Kernel(
    name=WholeNvfp4Config.kernel,
    operator=LinearProblem.operator,
    archs=("sm_90a",),
    source="kernel_space.operators.svdquant_linear.whole_nvfp4.kernel",
    config_class=WholeNvfp4Config,
    rules=rules.__name__,
    knob_rules=rules.KNOB_RULES,
    solve_stages=budget.solve_stages,
    budget=budget.budget,
    capacities=("smem",),
    layouts=budget.layouts,
    room=room,
    traffic=fill_bytes,
    machine="kernel_space.operators.svdquant_linear_16bit.whole.machine",
)
