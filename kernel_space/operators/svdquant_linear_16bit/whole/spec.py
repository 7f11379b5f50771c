"""What the project knows of the kernel ``whole``."""

from __future__ import annotations

from kernel_space.core.kernel import Kernel, Room
from kernel_space.operators.svdquant_gemm_16bit.narrow import rules as narrow
from kernel_space.operators.svdquant_gemm_16bit.traffic import fill_bytes
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem
from kernel_space.operators.svdquant_linear_16bit.whole import budget, rules
from kernel_space.operators.svdquant_linear_16bit.whole.config import WholeConfig

COUNTERS, TAGGED = 256, 4  # bytes of all counters, of a number of lora_act_in


def room(config: WholeConfig, problem: HalfLinearProblem) -> Room:
    """Counters of who has taken lora_act_in, and that, each pair with a word that says that it is there."""
    size = COUNTERS + TAGGED * problem.m * problem.r if problem.r else 0
    return Room(size=size, zeroed=size)


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
    machine="kernel_space.operators.svdquant_linear_16bit.whole.machine",
)
