"""What the machine, its clock and reports know of the kernel: as of ``svdquant_gemm``'s ``sm100a``."""

from __future__ import annotations

import dataclasses

from kernel_space.operators.svdquant_gemm.sm100a import machine

OPERANDS = {**machine.OPERANDS, "next_act": "y"}

# The defects of ``mutations`` are edits of the other kernel's text.
TRAITS = dataclasses.replace(machine.TRAITS, operands=OPERANDS, mutations="")
