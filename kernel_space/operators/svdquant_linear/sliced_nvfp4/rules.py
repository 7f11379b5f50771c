"""Legality of the kernel ``sliced_nvfp4``: the rules of ``sliced``, and of the parts of x."""

from __future__ import annotations

from kernel_space.core.kernel import Rule
from kernel_space.operators.svdquant_linear.staged_nvfp4.rules import parts
from kernel_space.operators.svdquant_linear_16bit.sliced import rules as sliced

KNOB_RULES: dict[str, Rule] = {**sliced.KNOB_RULES, "parts": parts}
