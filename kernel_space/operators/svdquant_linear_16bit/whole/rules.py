"""Legality of the kernel ``whole``: the rules of ``narrow``, and one of its own."""

from __future__ import annotations

import math
from typing import Any

from kernel_space.core.config import AUTO
from kernel_space.core.kernel import Rule
from kernel_space.operators.svdquant_gemm_16bit.narrow import rules as narrow
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem
from kernel_space.operators.svdquant_linear_16bit.whole.config import WholeConfig

SLOT_COLUMNS = 11  # rows of x of which a slot of packed weights holds a unit


def _down(config: WholeConfig, problem: HalfLinearProblem) -> str | None:
    """Where lora_down is multiplied, the slots of a warp's weights are its ring of x."""
    slots: Any = config.num_ab_stage  # a number where it is not AUTO
    least = math.ceil(config.tile_mnk[1] / SLOT_COLUMNS)
    if not problem.r or slots == AUTO or slots >= least:
        return None
    return f"num_ab_stage must be at least {least}, for a unit of x of {config.tile_mnk[1]} rows, got {slots}"


KNOB_RULES: dict[str, Rule] = {**narrow.KNOB_RULES, "down": _down}
