"""What is known of ``merged_fp8`` beside its sources: how a launch is dealt out, a problem for its rings."""

from __future__ import annotations

import dataclasses

from kernel_space.core.traits import MachineTraits
from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K
from kernel_space.operators.svdquant_gemm.problem import K_MULTIPLE
from kernel_space.operators.svdquant_gemm.sm90a_parts.turns import turns as of_tiles
from kernel_space.operators.svdquant_linear_16bit.merged.machine import schedule
from kernel_space.operators.svdquant_linear_fp8.merged_fp8.config import MergedFp8Config
from kernel_space.operators.svdquant_linear_fp8.problem import Fp8LinearProblem

ROUND_CHUNKS = 14  # of a CTA whose ring of packed codes goes round twice and more: boxes of two, three slots


def turns(config: MergedFp8Config, problem: Fp8LinearProblem) -> tuple[Fp8LinearProblem, int]:
    """(problem, SMs of the chip) in which also each slot of packed codes is filled again, if a CTA merges so much."""
    found, sms = of_tiles(config, problem)
    chunks = min(config.merge_chunks, ROUND_CHUNKS)
    return dataclasses.replace(found, k=max(found.k, chunks * CHUNK_K - K_MULTIPLE)), sms


TRAITS = MachineTraits(schedule=schedule)
TURNS = turns
