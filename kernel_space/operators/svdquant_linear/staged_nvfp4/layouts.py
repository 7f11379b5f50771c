"""Layouts of the kernel ``staged_nvfp4``: those of ``staged`` without 1 / smooth, which is in x."""

import cutlass
from cutlass import cute

from kernel_space.operators.svdquant_gemm.parts.allocations import MBARRIER_BYTES, Allocation
from kernel_space.operators.svdquant_linear_16bit.staged.layouts import INVERSE, SMOOTH, StagedLayouts

TURN = "turn"
TURN_WORDS = 2  # of the multiplying warps: whether they have won a part of x, how many parts are done


class StagedNvfp4Layouts(StagedLayouts):
    """Tiled MMAs and staged SMEM layouts of a resolved config."""

    def allocations(self) -> list[Allocation]:
        """Shared memory in the order in which the kernel lays it out."""
        regions = [one for one in super().allocations() if one.name not in (SMOOTH, INVERSE)]
        at = next(number for number, one in enumerate(regions) if one.align == MBARRIER_BYTES)
        turn = Allocation(TURN, cutlass.Int32, cute.make_layout(TURN_WORDS), "one", 8)
        return [*regions[:at], turn, *regions[at:]]

    def barriers(self) -> list[tuple[str, int, str]]:
        """Those of ``staged`` without that of smooth."""
        return [one for one in super().barriers() if one[0] != "smooth_full"]
