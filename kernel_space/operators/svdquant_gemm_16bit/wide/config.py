"""WideConfig: one point of the space of the kernel ``wide``."""

from __future__ import annotations

import dataclasses

from kernel_space.core.config import flag, number, sizes, stages, word
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import STREAM_CTAS, STREAM_PARTS, RingsConfig

# CTAs that the registers of an SM are shared out to at launch, registers per thread of loading warps and of consumers:
# with one consumer warpgroup of few accumulators an SM has room for a CTA of the kernel before (see ``ExpandConfig``).
SHARED, ALONE = (2, 24, 232), (1, 24, 240)
MOST_SHARED_ACCUMULATORS = 64
USUAL_EPI_TILE_N = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class WideConfig(RingsConfig, kernel="wide"):
    """Knobs of ``wide``. "Rows" are rows of weights, the register operand, "columns" rows of xs: the kernel computes
    y.T.

    ``tile_mnk``            rows, columns, K elements of one CTA tile and of one slot of the packed ring
    ``consumer_warpgroups``  warpgroups that share the rows of a tile; each owns a multiple of 64
    ``cluster_shape_mn``    CTAs per cluster along rows, columns; with 2x1 both share xs by multicast
    ``num_ab_stage``        SMEM ring slots of packed weights and their scales; ``auto`` = the most that fit
    ``num_dq_stage``        SMEM ring slots of xs, 64 K elements each
    ``num_lora_stage``      SMEM ring slots of one LoRA slice of lora_up; 0 without LoRA
    ``epi_tile_n``          columns of the tile that a consumer warp stages at a time of its 16 rows, on their way from
                            registers to y; 0 is 32
    ``wgmma_k``             K elements between two waits for wgmma: 16 waits for each instruction with dequantizing in
                            between, 32 for two with 64 rows each or more
    ``raster_order``        ``m``: consecutive tiles walk along rows first; ``n``: along columns first
    ``swizzle_size``        clusters per band of the raster; 1 = none
    ``split_k``             CTAs that share one output tile along K; reduced in a fixed order through the workspace
    ``stream_k``            tiles of the last, ragged waves are dealt out by k-tiles, in equal shares; partial sums are
                            added in a fixed order, through the workspace
    ``use_pdl``             programmatic dependent launch: prologue and loads of weights overlap the previous kernel
    """

    tile_mnk: tuple[int, int, int] = sizes(128, 128, 128, form="RxCxK such as 128x128x128")
    consumer_warpgroups: int = number(2)
    cluster_shape_mn: tuple[int, int] = sizes(1, 1, form="MxN such as 2x1")
    num_ab_stage: int | str = stages()
    num_dq_stage: int | str = stages()
    num_lora_stage: int | str = stages()
    epi_tile_n: int = number(0)
    wgmma_k: int = number(16)
    raster_order: str = word("m", "n")
    swizzle_size: int = number(1)
    split_k: int = number(1)
    stream_k: bool = flag()
    use_pdl: bool = flag()

    @property  # a knob of other kernels
    def swap_ab(self) -> bool:
        """The kernel computes y.T: its rows run over N of the problem."""
        return True

    @property  # a knob of other kernels
    def pingpong(self) -> bool:
        return False

    @property
    def expands_act(self) -> bool:
        """For the layouts: columns come as they are multiplied."""
        return True

    @property  # a knob of other kernels
    def num_c_stage(self) -> int:
        """What a warp transposes of y leaves SMEM before the next piece."""
        return 1

    @property  # a knob of other kernels
    def num_dequant_warpgroups(self) -> int:
        """None: the layouts ask for one where columns are packed."""
        return 1

    @property
    def usual_epi_tile_n(self) -> int:
        """What ``epi_tile_n=0`` stands for."""
        return USUAL_EPI_TILE_N

    @property
    def shares_sm(self) -> bool:
        """Whether a CTA of the kernel before fits on an SM beside one of this."""
        return self.consumer_warpgroups == 1 and self.accumulators <= MOST_SHARED_ACCUMULATORS

    @property
    def expand_registers(self) -> tuple[int, int, int]:
        """As ``ExpandConfig`` names them, whose loading warps the kernel has."""
        return SHARED if self.shares_sm else ALONE

    def sums_in_workspace(self, tiles: int) -> tuple[int, int]:
        if self.stream_k:
            return STREAM_CTAS * 4 * self.consumer_warpgroups, STREAM_CTAS
        return super().sums_in_workspace(tiles)

    @property
    def partial_sums(self) -> int:
        # A share has at least floor(1 / STREAM_PARTS) of a tile's units, and tiles begin and end within shares.
        return 2 * STREAM_PARTS + 1 if self.stream_k else self.split_k
