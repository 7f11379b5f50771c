"""RingConfig: one point of the space of the kernel ``sm90a_ring``."""

from __future__ import annotations

import dataclasses

from kernel_space.core.config import flag, number, sizes, stages, word
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import RingsConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class RingConfig(RingsConfig, kernel="sm90a_ring"):
    """Knobs of ``sm90a_ring``. "Rows" are rows of the register operand, "columns" rows of the other one.

    ``tile_mnk``            rows, columns, K elements of one CTA tile and of one slot of the packed ring
    ``consumer_warpgroups``  warpgroups that share the rows of a tile; each owns a multiple of 64
    ``pingpong``            of two consumer warpgroups each has whole tiles of its own, in turn: one multiplies while
                            the other stores; without, both share every tile (CUTLASS: cooperative)
    ``num_ab_stage``        SMEM ring slots of both packed operands and their scales; ``auto`` = the most that fit
    ``num_dq_stage``        SMEM ring slots of the dequantized column operand, 64 K elements each
    ``num_lora_stage``      SMEM ring slots of one LoRA slice of 64 columns of R; 0 without LoRA
    ``num_c_stage``         SMEM ring slots of what a consumer warp stages of y
    ``epi_tile_n``          columns of the tile that a consumer warp stages at a time of its 16 rows, on their way from
                            registers to y; 0 is all columns
    ``register_operand``    ``act`` or ``wgt``: which one wgmma takes from registers; ``wgt`` computes y.T. The other
                            one is dequantized into shared memory: its tile may be any multiple of 8 rows
    ``num_dequant_warpgroups``  warpgroups that dequantize the column operand into the dq ring
    ``wgmma_k``             K elements between two waits for wgmma: 16 waits for each instruction with dequantizing in
                            between, 32 for four with 64 rows each or two
    ``raster_order``        ``m``: consecutive tiles walk along rows first; ``n``: along columns first
    ``swizzle_size``        tiles per band of the raster; 1 = none
    ``ctas_per_sm``         CTAs that share an SM; with 2 each has half of its registers and shared memory
    ``split_k``             CTAs that share one output tile along K; reduced in a fixed order through the workspace
    ``use_pdl``             programmatic dependent launch: the prologue overlaps the previous kernel
    """

    tile_mnk: tuple[int, int, int] = sizes(256, 128, 128, form="RxCxK such as 256x128x128")
    consumer_warpgroups: int = number(2)
    pingpong: bool = flag()
    num_ab_stage: int | str = stages()
    num_dq_stage: int | str = stages()
    num_lora_stage: int | str = stages()
    num_c_stage: int | str = stages()
    epi_tile_n: int = number(0)
    register_operand: str = word("act", "wgt")
    num_dequant_warpgroups: int = number(1)
    wgmma_k: int = number(16)
    raster_order: str = word("m", "n")
    swizzle_size: int = number(1)
    ctas_per_sm: int = number(1)
    split_k: int = number(1)
    use_pdl: bool = flag()

    @property
    def cluster_shape_mn(self) -> tuple[int, int]:
        return (1, 1)

    @property
    def stream_k(self) -> bool:
        return False

    @property
    def swap_ab(self) -> bool:
        """Whether the kernel computes y.T: its rows run over N of the problem."""
        return self.register_operand == "wgt"

    @property
    def usual_epi_tile_n(self) -> int:
        """What ``epi_tile_n=0`` stands for."""
        return self.tile_mnk[1]
