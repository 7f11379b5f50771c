"""What is known of ``merged_fp8`` beside its sources: how a launch is dealt out, a problem for its rings."""

from __future__ import annotations

from kernel_space.core.traits import MachineTraits
from kernel_space.operators.svdquant_gemm.sm90a_parts.turns import turns
from kernel_space.operators.svdquant_linear_16bit.merged.machine import schedule

TRAITS = MachineTraits(schedule=schedule)
TURNS = turns
