"""Legality of the space of ``smooth_wgmma``: that of ``lora_wgmma``, whose registers and shared memory it has."""

from __future__ import annotations

from kernel_space.core.kernel import Rule
from kernel_space.operators.nvfp4_quantize.lora_wgmma import rules as lora_wgmma
from kernel_space.operators.smooth_lora_down.smooth_mma.rules import rank

KNOB_RULES: dict[str, Rule] = {**lora_wgmma.KNOB_RULES, "rank": rank}
