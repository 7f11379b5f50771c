"""Legality of the kernel ``whole_nvfp4``: the rules of ``whole``."""

from __future__ import annotations

from kernel_space.operators.svdquant_linear_16bit.whole.rules import KNOB_RULES

__all__ = ["KNOB_RULES"]
