"""KernelConfigSm90a: one point of the sm_90a kernel space."""

from __future__ import annotations

import dataclasses

from kernel_space.core.config import flag, number, sizes, stages, word
from kernel_space.operators.svdquant_gemm.gemm_config import GemmConfig

MMA_ROWS = 64  # rows of one wgmma instruction
LEAST_WGMMA_STAGES = 3  # slots of weights of ``mainloop=mma`` with wgmma: they hold the sums of a cluster
# Registers per thread of loading, dequantizing and consumer warps of ``mainloop=mma`` with wgmma, by consumer and
# dequantizing warpgroups and CTAs per SM. At launch every warpgroup has an equal share of the 64 K, in eights; only
# consumers may then take more.
ROLE_REGISTERS = {
    (1, 1, 1): (24, 152, 240),
    (1, 1, 2): (24, 72, 144),
    (2, 1, 1): (24, 88, 200),
    (2, 1, 2): (24, 40, 96),
    (3, 1, 1): (24, 88, 120),
    (4, 1, 1): (24, 72, 96),
    (1, 2, 1): (24, 120, 240),
    (1, 2, 2): (24, 56, 120),
    (2, 2, 1): (24, 88, 136),
}
# The same of ``mainloop=expand``: CTAs that the registers of an SM are shared out to at launch, registers per thread of
# loading warps and of consumers. One consumer warpgroup of few accumulators leaves half of the registers to blocks of
# the expanding kernel. With fewer than 208 for itself ptxas makes a slower loop of it (20.5 with 184, 17.7 us with 232
# at M = 256, H200), and at launch it wants 30 beside the accumulators of one wgmma.
EXPAND_SHARED, EXPAND_ALONE = (2, 24, 232), (1, 24, 240)
MOST_SHARED_ACCUMULATORS = 64
EXPAND_EPI_TILE_N = 32  # columns of a tile that a warp of ``mainloop=expand`` stages at a time by default
STREAM_CTAS = 144  # SMs of a full GH100, hence CTAs that may publish a part of a tile
STREAM_PARTS = 8  # parts of a tile that stream-K aims at, at most


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelConfigSm90a(GemmConfig, kernel="sm90a"):
    """Knobs of ``svdquant_gemm_sm90a``. "Rows" are rows of the register operand, "columns" rows of the other one.

    ``tile_mnk``            rows, columns, K elements of one CTA tile and of one slot of the packed ring
    ``consumer_warpgroups``  warpgroups that share the rows of a tile; each owns a multiple of 64
    ``pingpong``            of two consumer warpgroups each has whole tiles of its own, in turn: one multiplies while
                            the other stores; without, both share every tile (CUTLASS: cooperative)
    ``cluster_shape_mn``    CTAs per cluster along rows, columns; with 2x1 both share expanded activations by multicast
    ``num_ab_stage``        SMEM ring slots of both packed operands and their scales; ``auto`` = the most that fit
    ``num_dq_stage``        SMEM ring slots of the dequantized (or expanded) column operand, 64 K elements each; with
                            ``mainloop=mma`` 128, or 64 (``dq_slot_halves``), and 0 takes mma.sync in place of wgmma
    ``num_lora_stage``      SMEM ring slots of one LoRA slice of 64 columns of R; 0 without LoRA
    ``num_c_stage``         SMEM ring slots of what a consumer warp stages of y
    ``epi_tile_n``          columns of the tile that a consumer warp stages at a time of its 16 rows, on their way from
                            registers to y; 0 is 32 with ``mainloop=expand``, all columns with ``wgmma``
    ``register_operand``    ``act`` or ``wgt``: which one wgmma takes from registers; ``wgt`` computes y.T. The other
                            one is dequantized into shared memory: its tile may be any multiple of 8 rows
    ``num_dequant_warpgroups``  warpgroups that dequantize the column operand into the dq ring
    ``mainloop``            ``wgmma``: both operands become fp16 on chip; ``expand``: a first kernel writes the
                            activations as fp16 into the workspace, weights are dequantized in registers (y.T);
                            ``mma``: for few rows of act: one wave of CTAs, K split over a cluster
    ``wgmma_k``             K elements between two waits for wgmma: 16 waits for each instruction with dequantizing in
                            between, 32 for four with 64 rows each or two
    ``raster_order``        ``m``: consecutive tiles walk along rows first; ``n``: along columns first
    ``swizzle_size``        clusters per band of the raster; 1 = none
    ``ctas_per_sm``         CTAs that share an SM; with 2 each has half of its registers and shared memory
    ``split_k``             CTAs that share one output tile along K; reduced in a fixed order, through the workspace
                            or with ``mainloop=mma`` through the shared memory of a cluster
    ``stream_k``            with ``mainloop=expand``: tiles of the last, ragged waves are dealt out by k-tiles, in equal
                            shares; partial sums are added in a fixed order, through the workspace
    ``use_pdl``             programmatic dependent launch: the prologue overlaps the previous kernel; with
                            ``mainloop=mma`` and ``expand`` the loads of weights too
    """

    tile_mnk: tuple[int, int, int] = sizes(256, 128, 128, form="RxCxK such as 256x128x128")
    consumer_warpgroups: int = number(2)
    pingpong: bool = flag()
    cluster_shape_mn: tuple[int, int] = sizes(1, 1, form="MxN such as 2x1")
    num_ab_stage: int | str = stages()
    num_dq_stage: int | str = stages()
    num_lora_stage: int | str = stages()
    num_c_stage: int | str = stages()
    epi_tile_n: int = number(0)
    register_operand: str = word("act", "wgt")
    num_dequant_warpgroups: int = number(1)
    mainloop: str = word("wgmma", "expand", "mma")
    wgmma_k: int = number(16)
    raster_order: str = word("m", "n")
    swizzle_size: int = number(1)
    ctas_per_sm: int = number(1)
    split_k: int = number(1)
    stream_k: bool = flag()
    use_pdl: bool = flag()

    @property
    def swap_ab(self) -> bool:
        """Whether the kernel computes y.T: its rows run over N of the problem."""
        return self.register_operand == "wgt"

    @property
    def expands_act(self) -> bool:
        return self.mainloop == "expand"

    @property
    def cta_tile_mnk(self) -> tuple[int, int, int]:
        """What one CTA owns."""
        return self.tile_mnk

    @property
    def splits_in_workspace(self) -> int:
        return 1 if self.mainloop == "mma" else self.split_k

    def sums_in_workspace(self, tiles: int) -> tuple[int, int]:
        if self.stream_k:
            return STREAM_CTAS * 4 * self.consumer_warpgroups, STREAM_CTAS
        return super().sums_in_workspace(tiles)

    @property
    def warp_rows(self) -> int:
        """With ``mainloop=mma``: weight rows of one warp."""
        return 32 if self.num_dq_stage == 0 else 16

    @property
    def role_registers(self) -> tuple[int, int, int]:
        """With ``mainloop=mma`` and wgmma: registers per thread of loading, dequantizing and consumer warps."""
        return ROLE_REGISTERS[self.consumer_warpgroups, self.num_dequant_warpgroups, self.ctas_per_sm]

    @property
    def dq_slot_halves(self) -> int:
        """With ``mainloop=mma`` and wgmma: halves of 64 K elements in a dq slot. Beside the next launch's CTA a ring of
        weights is small, and halves make the most of it; elsewhere they cost more waits (11.8 instead of 10.7 us at
        M = 128, H200).
        """
        return 1 if self.ctas_per_sm == 2 and not self.swap_ab else 2

    @property
    def shares_sm_with_expansion(self) -> bool:
        """With ``mainloop=expand``: whether blocks of its first kernel fit on an SM beside a CTA of the second."""
        accumulators = self.row_blocks * self.tile_mnk[1] // 2
        one = self.consumer_warpgroups == 1 and accumulators <= MOST_SHARED_ACCUMULATORS
        return self.expands_act and one

    @property
    def expand_registers(self) -> tuple[int, int, int]:
        """With ``mainloop=expand``: CTAs that the registers of an SM are shared out to at launch, registers per thread
        of loading warps and of consumers.
        """
        return EXPAND_SHARED if self.shares_sm_with_expansion else EXPAND_ALONE

    @property
    def partial_sums(self) -> int:
        if self.stream_k:
            # A share has at least floor(1 / STREAM_PARTS) of a tile's units, and tiles begin and end within shares.
            return 2 * STREAM_PARTS + 1
        if self.mainloop != "mma":
            return self.split_k
        return self.split_k * 4 * self.consumer_warpgroups * self.warp_rows // self.tile_mnk[0]

    @property
    def row_blocks(self) -> int:
        """Blocks of 64 rows of a tile that one consumer warpgroup owns."""
        return self.tile_mnk[0] // (MMA_ROWS * self.warpgroups_of_tile)

    @property
    def warpgroups_of_tile(self) -> int:
        """Consumer warpgroups that share the rows of a tile."""
        return 1 if self.pingpong else self.consumer_warpgroups

    @property
    def usual_epi_tile_n(self) -> int:
        """What ``epi_tile_n=0`` stands for."""
        return EXPAND_EPI_TILE_N if self.expands_act else self.tile_mnk[1]

    @property
    def staged_columns(self) -> int:
        """Columns of the tile that a consumer warp stages at a time."""
        return self.epi_tile_n or self.usual_epi_tile_n

    @property
    def staged_parts(self) -> int:
        """Parts in which a consumer warp stages what it holds of a tile."""
        return self.row_blocks * -(-self.tile_mnk[1] // self.staged_columns)
