"""Pairs of lora_act_in from the L2, when they are there."""

from typing import Any

from cutlass import Int32, cute

from kernel_space.operators.svdquant_linear_16bit.whole.ptx import load_tagged, rest

LOOKS = 64  # at pairs without a rest, which would be half of what they take


@cute.jit
def load_pairs(address: Any, wanted: Any) -> Any:
    """Four words of ``ptx.store_tagged``, looked for until they are there; zeros unless ``wanted``."""
    a, b, c, d, there = load_tagged(address, wanted)
    looks = Int32(LOOKS)
    while there == 0:
        if looks <= 0:
            rest()
        a, b, c, d, there = load_tagged(address, wanted)
        looks -= 1
    return [a, b, c, d]
