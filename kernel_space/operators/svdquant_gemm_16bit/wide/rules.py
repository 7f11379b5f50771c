"""Legality of the kernel ``wide``: the only list of its rules."""

from __future__ import annotations

from kernel_space.core.kernel import Rule
from kernel_space.operators.svdquant_gemm.sm90a_expand.rules import KNOB_RULES as EXPAND_RULES
from kernel_space.operators.svdquant_gemm_16bit.problem import HalfGemmProblem
from kernel_space.operators.svdquant_gemm_16bit.wide.config import WideConfig


def canonical(config: WideConfig, problem: HalfGemmProblem) -> WideConfig:
    """Give knobs without effect one value, so that two spellings of one kernel are one candidate."""
    if config.epi_tile_n == config.usual_epi_tile_n:
        config = config.replace(epi_tile_n=0)
    return config if problem.r else config.replace(num_lora_stage=0)


KNOB_RULES: dict[str, Rule] = {name: rule for name, rule in EXPAND_RULES.items() if name != "pingpong"}
