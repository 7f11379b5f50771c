"""Legality of the space of ``smooth_tma``: that of ``lora_tma``, whose registers and shared memory it has. It has no
padding to clear, so a turn may have no chunk.
"""

from __future__ import annotations

from kernel_space.core.kernel import Rule
from kernel_space.operators.nvfp4_quantize.lora_tma import rules as lora_tma
from kernel_space.operators.smooth_lora_down.smooth_mma.rules import rank

KNOB_RULES: dict[str, Rule] = {
    **{name: rule for name, rule in lora_tma.KNOB_RULES.items() if name != "idle_turns"},
    "rank": rank,
}
