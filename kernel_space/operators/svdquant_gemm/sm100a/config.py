"""KernelConfigSm100a: one point of the sm_100a kernel space."""

from __future__ import annotations

import dataclasses

from kernel_space.core.config import ALL, flag, number, sizes, stages, word
from kernel_space.operators.svdquant_gemm.gemm_config import GemmConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelConfigSm100a(GemmConfig, kernel="sm100a"):
    """Knobs of the kernel ``sm100a``.

    ``mma_tiler_mn``      M, N of one MMA tile over the whole CTA group; M = 256 means cta_group 2
    ``mma_tiler_k``       K elements of one A/B stage
    ``cluster_shape_mn``  CTAs per cluster along M, N (of the MMA, so swapped under ``swap_ab``)
    ``num_ab_stage``      SMEM ring slots of A, B, SFA, SFB; ``auto`` = the most that fit
    ``num_lora_stage``    SMEM ring slots of one LoRA slice; 0 without LoRA or with lora_buffer=ab_stage
    ``num_acc_stage``     TMEM accumulators; 2 at N = 256 means overlapped by the scale-factor columns
    ``num_c_stage``       SMEM ring slots of one epilogue subtile
    ``lora_tile_k``       columns of R in one LoRA slice: 64, or ``all`` of R (0 once resolved at R = 0)
    ``lora_schedule``     ``interleave`` LoRA MMAs through the K loop, or issue them at its ``tail``
    ``lora_buffer``       ``dedicated`` SMEM ring, or a slice rides in an ``ab_stage`` slot
    ``raster_order``      ``m``: consecutive tiles walk along M first; ``n``: along N first
    ``swizzle_size``      clusters per band of the raster; 1 = none
    ``epi_tile_n``        columns of one epilogue subtile
    ``split_k``           CTA groups that share one output tile along K; reduced in a fixed order
    ``swap_ab``           compute y.T: wgt is operand A (M of the MMA runs over N), act operand B
    ``prefetch_dist``     k-tiles of L2 prefetch ahead of the TMA loads, and LoRA at the start of a tile; 0 = none
    ``use_pdl``           programmatic dependent launch: the prologue overlaps the previous kernel
    """

    mma_tiler_mn: tuple[int, int] = sizes(256, 128, form="MxN such as 256x128")
    mma_tiler_k: int = number(256)
    cluster_shape_mn: tuple[int, int] = sizes(2, 1, form="MxN such as 2x1")
    num_ab_stage: int | str = stages()
    num_lora_stage: int | str = stages()
    num_acc_stage: int | str = stages()
    num_c_stage: int | str = stages()
    lora_tile_k: int | str = number(64, ALL)
    lora_schedule: str = word("interleave", "tail")
    lora_buffer: str = word("dedicated", "ab_stage")
    raster_order: str = word("m", "n")
    swizzle_size: int = number(1)
    epi_tile_n: int = number(32)
    split_k: int = number(1)
    swap_ab: bool = flag()
    prefetch_dist: int = number(0)
    use_pdl: bool = flag()

    @property
    def cta_group(self) -> int:
        """CTAs that issue one MMA together: 2 when M of the tile is 256."""
        return 2 if self.mma_tiler_mn[0] == 256 else 1

    @property
    def mma_tile_mn(self) -> tuple[int, int]:
        return self.mma_tiler_mn

    @property
    def cta_tile_mnk(self) -> tuple[int, int, int]:
        """What one CTA owns."""
        m, n = self.mma_tiler_mn
        return (m // self.cta_group, n, self.mma_tiler_k)
