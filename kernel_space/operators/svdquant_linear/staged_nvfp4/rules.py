"""Legality of the kernel ``staged_nvfp4``: the rules of ``staged``, and of the parts of x."""

from __future__ import annotations

from typing import Any

from kernel_space.core.kernel import Rule
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from kernel_space.operators.svdquant_linear_16bit.staged import rules as staged

MOST_PARTS = 128  # a bit each of the words that say which are taken


def parts(config: Any, problem: LinearProblem) -> str | None:
    """Parts of a tile's x; ``config``: of any kernel that has them."""
    if 1 <= config.quantize_parts <= MOST_PARTS:
        return None
    return f"quantize_parts must be from 1 to {MOST_PARTS}, got {config.quantize_parts}"


KNOB_RULES: dict[str, Rule] = {
    **{name: rule for name, rule in staged.KNOB_RULES.items() if name != "dtype"},
    "parts": parts,
}
