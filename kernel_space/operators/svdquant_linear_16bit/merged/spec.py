"""What the project knows of the kernel ``merged``."""

from __future__ import annotations

import math

from kernel_space.core.kernel import Kernel
from kernel_space.operators.svdquant_gemm.traffic import HALF_BYTES, NVFP4_BYTES
from kernel_space.operators.svdquant_linear_16bit.merged import budget, rules
from kernel_space.operators.svdquant_linear_16bit.merged.config import MergedConfig
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem


def fill_bytes(config: MergedConfig, problem: HalfLinearProblem) -> float:
    """What a launch brings to its SMs: packed weights once; of each tile, at the edge too, its rows and columns over
    all of K.
    """
    rows, columns, _ = config.tile_mnk
    tiles = math.ceil(problem.n / rows) * math.ceil(problem.m / columns)
    return problem.n * problem.k * NVFP4_BYTES + tiles * (rows + columns) * problem.k * HALF_BYTES


KERNEL = Kernel(
    name=MergedConfig.kernel,
    operator=HalfLinearProblem.operator,
    archs=("sm_90a",),
    source="kernel_space.operators.svdquant_linear_16bit.merged.kernel",
    config_class=MergedConfig,
    rules=rules.__name__,
    knob_rules=rules.KNOB_RULES,
    canonical=rules.canonical,
    solve_stages=budget.solve_stages,
    budget=budget.budget,
    capacities=("smem",),
    layouts=budget.layouts,
    room=budget.room,
    traffic=fill_bytes,
    machine="kernel_space.operators.svdquant_linear_16bit.merged.machine",
)
