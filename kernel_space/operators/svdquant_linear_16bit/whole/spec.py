"""What the project knows of the kernel ``whole``."""

from __future__ import annotations

from kernel_space.core.kernel import Kernel, Room
from kernel_space.operators.svdquant_gemm.partials import PARTIALS_ALIGN
from kernel_space.operators.svdquant_gemm_16bit.narrow import rules as narrow
from kernel_space.operators.svdquant_gemm_16bit.traffic import fill_bytes
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem
from kernel_space.operators.svdquant_linear_16bit.whole import budget, rules
from kernel_space.operators.svdquant_linear_16bit.whole.config import WholeConfig


def room(config: WholeConfig, problem: HalfLinearProblem) -> Room:
    """Two counters for each tile of rows of x, at most ``narrow.MAX_XS_TILES``: what is ready, who has taken it."""
    return Room(size=PARTIALS_ALIGN, zeroed=PARTIALS_ALIGN) if problem.r else Room()


KERNEL = Kernel(
    name=WholeConfig.kernel,
    operator=HalfLinearProblem.operator,
    archs=("sm_90a",),
    source="kernel_space.operators.svdquant_linear_16bit.whole.kernel",
    config_class=WholeConfig,
    rules=rules.__name__,
    knob_rules=rules.KNOB_RULES,
    canonical=narrow.canonical,
    solve_stages=budget.solve_stages,
    budget=budget.budget,
    capacities=("smem",),
    layouts=budget.layouts,
    room=room,
    traffic=fill_bytes,
    machine="kernel_space.operators.svdquant_gemm.sm90a_parts.machine",
)
