"""What is known of ``fused`` beside its sources: as of kernels of one wave; a problem long enough for its ring of x."""

from __future__ import annotations

from kernel_space.operators.svdquant_gemm.sm90a_parts.machine import TRAITS
from kernel_space.operators.svdquant_gemm.sm90a_parts.turns import long_k
from kernel_space.operators.svdquant_linear_16bit.fused.config import SLOT_K, FusedConfig
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem

MOST_STEPS_OF_CLUSTER = 120  # K tiles; a slot that is filled once tells nothing of who gives it back

__all__ = ["TRAITS", "TURNS"]


def turns(config: FusedConfig, problem: HalfLinearProblem) -> tuple[HalfLinearProblem, int]:
    """(problem, SMs of the chip) in which every slot of packed weights and of x is filled again."""
    steps = -(-int(config.num_dq_stage) * SLOT_K // config.cta_tile_mnk[2])
    stages = max(int(config.num_ab_stage), steps)
    found: tuple[HalfLinearProblem, int] = long_k(config, problem, stages, MOST_STEPS_OF_CLUSTER)
    return found


TURNS = turns
