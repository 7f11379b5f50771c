"""Shared memory of the kernel: as of ``svdquant_gemm``'s, with codes in place of 16-bit columns, and 1 / smooth."""

from typing import Any

import cutlass
import cutlass.utils.blackwell_helpers as sm100_utils
from cutlass import cute
from cutlass.tensor_utils import LayoutEnum

from kernel_space.operators.svdquant_gemm.parts.allocations import Allocation
from kernel_space.operators.svdquant_gemm.sm100a.layouts import VECTOR_ALIGN, Layouts

CODES = 2  # of a byte


class QuantizingLayouts(Layouts):
    """As ``Layouts``; ``inverse``: 1 / smooth of a tile's columns of y."""

    def __init__(self, config: Any, problem_class: Any):
        self.has_smooth = problem_class.smooth == "fp32"
        super().__init__(config, problem_class)

    def _make_store(self) -> None:
        rows, columns = self.epi_tile
        self.store_dtype = cutlass.Uint8
        self.store_tile = (rows, cute.make_layout(cute.size(columns) // CODES))
        self.tiles_of_ctas = True
        self.c = sm100_utils.make_smem_layout_epi(
            self.store_dtype, LayoutEnum.ROW_MAJOR, self.store_tile, self.config.num_c_stage
        )
        self.tile_columns = cute.size(columns) * self.num_epi_subtiles
        self.inverse = cute.make_layout(self.tile_columns)

    def allocations(self) -> list[Allocation]:
        """Shared memory in the order in which the kernel lays it out; alignment never leaves a gap."""
        regions = super().allocations()
        if self.has_smooth:
            after = next(i for i, region in enumerate(regions) if region.name == "bias") + 1
            own = Allocation("1 / next_smooth", cutlass.Float32, self.inverse, "one", VECTOR_ALIGN)
            regions.insert(after, own)
        return regions
