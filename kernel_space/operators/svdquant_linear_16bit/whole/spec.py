"""What the project knows of the kernel ``whole``."""

from __future__ import annotations

from kernel_space.core.kernel import Kernel, Room
from kernel_space.operators.svdquant_gemm_16bit.narrow import rules as narrow
from kernel_space.operators.svdquant_gemm_16bit.traffic import fill_bytes
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem
from kernel_space.operators.svdquant_linear_16bit.whole import budget, rules
from kernel_space.operators.svdquant_linear_16bit.whole.config import WholeConfig

COUNTERS = (
    256  # bytes: two of four bytes for each tile of rows of x, of which there are at most ``MAX_XS_TILES``
)


def room(config: WholeConfig, problem: HalfLinearProblem) -> Room:
    """Counters of what is ready and of who has taken it."""
    return Room(size=COUNTERS, zeroed=COUNTERS) if problem.r else Room()


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
