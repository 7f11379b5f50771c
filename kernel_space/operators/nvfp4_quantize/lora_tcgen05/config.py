"""LoraTcgen05Config: one point of the space of the kernel ``lora_tcgen05``."""

from __future__ import annotations

import dataclasses

from kernel_space.core.config import KernelConfig, flag, number, stages
from kernel_space.operators.nvfp4_quantize.lora_tma.config import LANES, ROLE_WARPS
from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K

# Registers per thread of loading, multiplying and quantizing warps, by quantizing warps and CTAs per SM. Sums lie in
# tensor memory: a multiplying thread holds 16 or 32 of them at a time.
ROLE_REGISTERS = {
    (4, 1): (32, 120, 168),
    (8, 1): (32, 120, 128),
    (12, 1): (32, 120, 104),
    (16, 1): (32, 80, 88),
    (4, 2): (32, 104, 80),
    (8, 2): (32, 80, 72),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoraTcgen05Config(KernelConfig, kernel="lora_tcgen05"):
    """Knobs of the kernel ``lora_tcgen05``. A *chunk* is 64 elements along K.

    ``tile_m``       rows of x of a CTA: a multiple of 16, N of its tcgen05.mma
    ``quant_warps``  warps that quantize: 4, 8, 12 or 16
    ``split_k``      CTAs of a cluster that share rows along K; sums are added in a fixed order
    ``num_stage``    SMEM ring slots, a chunk of x, of lora_down and of 1 / smooth each; ``auto`` = the most that fit
    ``ctas_per_sm``  CTAs that must fit on an SM at once: bounds shared and tensor memory and the registers of a thread
    ``use_pdl``      programmatic dependent launch: smooth and lora_down are read while the previous kernel ends
    """

    tile_m: int = number(64)
    quant_warps: int = number(8)
    split_k: int = number(1)
    num_stage: int | str = stages()
    ctas_per_sm: int = number(1)
    use_pdl: bool = flag()

    @property
    def warps(self) -> int:
        return ROLE_WARPS + self.quant_warps

    @property
    def threads(self) -> int:
        return LANES * self.warps

    @property
    def tile_mk(self) -> tuple[int, int]:
        """Rows of a CTA, and the elements along K that it stands on at once."""
        return self.tile_m, CHUNK_K

    @property
    def role_registers(self) -> tuple[int, int, int]:
        return ROLE_REGISTERS[self.quant_warps, self.ctas_per_sm]

    @property
    def sums_along_k(self) -> int:
        """Sums of which a result is added up."""
        return self.split_k

    @property
    def cluster_size(self) -> int:
        return self.split_k
