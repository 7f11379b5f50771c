"""What is known of ``fused`` beside its sources: as of kernels of one wave; a problem long enough for its ring of x."""

from __future__ import annotations

import dataclasses

from kernel_space.operators.svdquant_gemm.problem import K_MULTIPLE
from kernel_space.operators.svdquant_gemm.sm90a_parts.machine import TRAITS
from kernel_space.operators.svdquant_gemm.sm90a_parts.turns import turns as of_one_wave
from kernel_space.operators.svdquant_linear_16bit.fused.config import SLOT_K, FusedConfig
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem

__all__ = ["TRAITS", "TURNS"]


def turns(config: FusedConfig, problem: HalfLinearProblem) -> tuple[HalfLinearProblem, int]:
    """(problem, SMs of the chip) in which every slot of x is filled again. One that is filled once tells nothing of who
    gives it back: nobody waits for that.
    """
    found, sms = of_one_wave(config, problem)
    part = (2 * int(config.num_dq_stage) + 1) * SLOT_K  # of K, of a CTA
    step = config.cta_tile_mnk[2]
    k = -(-part // step) * step * config.split_k - K_MULTIPLE
    return dataclasses.replace(found, k=max(found.k, k)), sms


TURNS = turns
