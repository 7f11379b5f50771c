"""Legality of the kernel ``staged_nvfp4``: the rules of ``staged``, and of the parts of x."""

from __future__ import annotations

from kernel_space.core.kernel import Rule
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from kernel_space.operators.svdquant_linear.staged_nvfp4.config import StagedNvfp4Config
from kernel_space.operators.svdquant_linear_16bit.staged import rules as staged

MOST_PARTS = 128  # a bit each of the words that say which are taken


def _parts(config: StagedNvfp4Config, problem: LinearProblem) -> str | None:
    if 1 <= config.quantize_parts <= MOST_PARTS:
        return None
    return f"quantize_parts must be from 1 to {MOST_PARTS}, got {config.quantize_parts}"


KNOB_RULES: dict[str, Rule] = {
    **{name: rule for name, rule in staged.KNOB_RULES.items() if name != "dtype"},
    "parts": _parts,
}
