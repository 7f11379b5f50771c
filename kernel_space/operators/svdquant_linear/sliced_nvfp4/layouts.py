"""Layouts of the kernel ``sliced_nvfp4``: those of ``sliced`` without smooth, which is in x."""

import cutlass
from cutlass import cute

from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.parts.allocations import MBARRIER_BYTES, Allocation
from kernel_space.operators.svdquant_linear.staged_nvfp4.layouts import TURN, TURN_WORDS
from kernel_space.operators.svdquant_linear_16bit.sliced.config import SlicedKnobs
from kernel_space.operators.svdquant_linear_16bit.sliced.layouts import SlicedLayouts
from kernel_space.operators.svdquant_linear_16bit.staged.layouts import INVERSE, SMOOTH


class SlicedNvfp4Layouts(SlicedLayouts):
    """Counts and staged SMEM layouts of a resolved config."""

    def __init__(self, config: SlicedKnobs, problem_class: ProblemClass):
        super().__init__(config, problem_class)
        self.counts = True  # parts of x, also where there is no lora_act_in
        self.multiplying_warps = self.warps

    def allocations(self) -> list[Allocation]:
        """Shared memory in the order in which the kernel lays it out."""
        regions = [one for one in super().allocations() if one.name not in (SMOOTH, INVERSE)]
        at = next(number for number, one in enumerate(regions) if one.align == MBARRIER_BYTES)
        turn = Allocation(TURN, cutlass.Int32, cute.make_layout(TURN_WORDS), "one", 8)
        return [*regions[:at], turn, *regions[at:]]

    def barriers(self) -> list[tuple[str, int, str]]:
        """Those of ``sliced`` without that of smooth."""
        return [one for one in super().barriers() if one[0] != "smooth_full"]
