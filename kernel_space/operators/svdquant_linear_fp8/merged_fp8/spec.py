"""What the project knows of the kernel ``merged_fp8``."""

from __future__ import annotations

import math

from kernel_space.core.kernel import Kernel
from kernel_space.operators.svdquant_gemm.traffic import HALF_BYTES, NVFP4_BYTES
from kernel_space.operators.svdquant_linear_fp8.merged_fp8 import budget, rules
from kernel_space.operators.svdquant_linear_fp8.merged_fp8.config import MergedFp8Config
from kernel_space.operators.svdquant_linear_fp8.problem import Fp8LinearProblem


def fill_bytes(config: MergedFp8Config, problem: Fp8LinearProblem) -> float:
    """What a launch brings to its SMs: packed weights and x once; of each tile, at the edge too, its rows and columns
    over all of K, a byte an element.
    """
    rows, columns, _ = config.tile_mnk
    tiles = math.ceil(problem.n / rows) * math.ceil(problem.m / columns)
    once = problem.n * problem.k * NVFP4_BYTES + problem.m * problem.k * HALF_BYTES
    return once + tiles * (rows + columns) * problem.k


KERNEL = Kernel(
    name=MergedFp8Config.kernel,
    operator=Fp8LinearProblem.operator,
    archs=("sm_90a",),
    source="kernel_space.operators.svdquant_linear_fp8.merged_fp8.kernel",
    config_class=MergedFp8Config,
    rules=rules.__name__,
    knob_rules=rules.KNOB_RULES,
    canonical=rules.canonical,
    solve_stages=budget.solve_stages,
    budget=budget.budget,
    capacities=("smem",),
    layouts=budget.layouts,
    room=budget.room,
    traffic=fill_bytes,
    machine="kernel_space.operators.svdquant_linear_fp8.merged_fp8.machine",
)
