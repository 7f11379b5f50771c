"""Counts of a config, shared and tensor memory of the kernel: what it allocates and what the budget reads back.

Shared memory is that of ``lora_tma``, but slots of lora_down have whole instructions of 128 rows; behind the rings come
the barrier of the sums and the word in which ``tcgen05.alloc`` leaves its address.

Tensor memory: a lane for each column of lora_down, a column of fp32 for each row of x; of more than 128 columns of
lora_down the next 128 lie behind.
"""

from __future__ import annotations

from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.lora_mma.layouts import BARRIER_BYTES, Region
from kernel_space.operators.nvfp4_quantize.lora_tcgen05.config import LoraTcgen05Config
from kernel_space.operators.nvfp4_quantize.lora_tma.layouts import SUM_BYTES, RingLayouts

MMA_M = 128  # rows of one tcgen05.mma of one CTA: columns of lora_down
LOAD_N = 16  # columns of tensor memory that a thread loads at once; N of the instruction is a multiple of it
GROUP_ROWS = 16  # that a warp quantizes at once: two blocks a lane
LEAST_COLUMNS = 32  # tcgen05.alloc takes powers of two from 32 to 512 (PTX ISA)
WORD_BYTES = 4


class LoraTcgen05Layouts(RingLayouts):
    """Of a config whose slots are a number; needs no DSL. The kernel holds its accumulators against ``columns_used``
    when it is traced."""

    def __init__(self, config: LoraTcgen05Config, problem_class: ProblemClass) -> None:
        super().__init__(config, problem_class, turns=1)
        self.blocks = -(-self.r // MMA_M)
        self.columns = self.blocks * MMA_M  # those beyond R are zeros
        self.slot_bytes = self.columns * self.row_bytes
        self.groups = self.tile_m // GROUP_ROWS
        self.empty_arrivals = 1 + self.quant_warps  # the commit of the instructions that read a slot
        self.columns_used = self.blocks * self.tile_m
        self.columns_allocated = max(LEAST_COLUMNS, 1 << (self.columns_used - 1).bit_length())
        self.owned_rows = -(-self.tile_m // self.splits)  # whose sums a CTA adds up, at most

    def allocations(self) -> list[Region]:
        """Shared memory in the order in which the kernel lays it out."""
        more = []
        if self.splits > 1:
            sums = self.splits * self.owned_rows * self.r * SUM_BYTES
            more.append(Region("sums of the cluster", sums, "one", 16))
        more.append(Region("sums ready", BARRIER_BYTES, "one", BARRIER_BYTES))
        more.append(Region("TMEM pointer", WORD_BYTES, "one", WORD_BYTES))
        return super().allocations() + more
