"""LoraTmaConfig: one point of the space of the kernel ``lora_tma``."""

from __future__ import annotations

import dataclasses

from kernel_space.core.config import KernelConfig, flag, number, stages
from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K

LANES, GROUP_WARPS = 32, 4
ROLE_WARPS = 2 * GROUP_WARPS  # of the loading warps and of those that multiply
# Registers per thread of loading, multiplying and quantizing warps, by quantizing warps and CTAs per SM. At launch
# every thread has an equal share of 64 K, in eights.
ROLE_REGISTERS = {
    (4, 1): (24, 240, 168),
    (8, 1): (24, 208, 128),
    (12, 1): (24, 200, 80),
    (16, 1): (24, 160, 72),
    (4, 2): (24, 136, 80),
    (8, 2): (24, 104, 64),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoraTmaConfig(KernelConfig, kernel="lora_tma"):
    """Knobs of the kernel ``lora_tma``. A *chunk* is 64 elements along K.

    ``tile_m``       rows of x of a CTA: a multiple of 8, N of its wgmma
    ``quant_warps``  warps that quantize: 4, 8, 12 or 16
    ``turns``        groups of these, of which each has a chunk of its own; the warps of one share its rows
    ``split_k``      CTAs of a cluster that share rows along K; sums are added in a fixed order
    ``num_stage``    SMEM ring slots, a chunk of x, of lora_down and of 1 / smooth each; ``auto`` = the most that fit
    ``prefetch_dist``  chunks of x that are brought to the L2 ahead of those that are loaded
    ``ctas_per_sm``  CTAs that must fit on an SM at once: bounds shared memory and the registers of a thread
    ``use_pdl``      programmatic dependent launch: smooth and lora_down are read while the previous kernel ends
    """

    tile_m: int = number(64)
    quant_warps: int = number(8)
    turns: int = number(1)
    split_k: int = number(1)
    num_stage: int | str = stages()
    prefetch_dist: int = number(0)
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
