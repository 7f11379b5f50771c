"""Legality of the space of ``smooth_mma``: that of ``lora_mma``, whose registers and shared memory it has."""

from __future__ import annotations

from typing import Any

from kernel_space.core.kernel import Rule
from kernel_space.operators.nvfp4_quantize.lora_mma import rules as lora_mma
from kernel_space.operators.smooth_lora_down.problem import SmoothProblem


def rank(_: Any, problem: SmoothProblem) -> str | None:
    return None if problem.r else "R must be above 0, got 0; kernel=smooth_rows smooths alone"


KNOB_RULES: dict[str, Rule] = {**lora_mma.KNOB_RULES, "rank": rank}
