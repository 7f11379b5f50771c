"""LoraMmaConfig: one point of the space of the kernel ``lora_mma``."""

from __future__ import annotations

import dataclasses

from kernel_space.core.config import KernelConfig, flag, number, stages
from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K

LANES = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoraMmaConfig(KernelConfig, kernel="lora_mma"):
    """Knobs of the kernel ``lora_mma``. A *chunk* is 64 elements along K.

    ``rows_per_warp``  rows of x that a warp quantizes and multiplies at once: 16 or 32
    ``warps_m``        warps of a CTA on rows below each other; they share chunks of lora_down
    ``warps_k``        warps of a CTA on the same rows, which take turns with the chunks of its part of K
    ``split_k``        CTAs of a cluster that share rows along K; sums are added in a fixed order
    ``split_r``        CTAs that share rows and K, each with its part of R; they take turns with quantizing chunks
    ``num_b_stage``    SMEM ring slots of lora_down for each of the warps along K, a chunk each
    ``prefetch_dist``  chunks between the one that is loaded to registers and the one that is brought to L2; 0: none is
    ``ctas_per_sm``    CTAs that must fit on an SM at once: bounds the registers of a thread
    ``use_pdl``        programmatic dependent launch: smooth and lora_down are read while the previous kernel ends
    """

    rows_per_warp: int = number(16)
    warps_m: int = number(4)
    warps_k: int = number(1)
    split_k: int = number(1)
    split_r: int = number(1)
    num_b_stage: int | str = stages()
    prefetch_dist: int = number(0)
    ctas_per_sm: int = number(2)
    use_pdl: bool = flag()

    @property
    def warps(self) -> int:
        return self.warps_m * self.warps_k

    @property
    def threads(self) -> int:
        return LANES * self.warps

    @property
    def tile_m(self) -> int:
        """Rows of a CTA."""
        return self.warps_m * self.rows_per_warp

    @property
    def tile_mk(self) -> tuple[int, int]:
        """Rows of a CTA, and the elements along K that its warps stand on at once."""
        return self.tile_m, CHUNK_K * self.warps_k

    @property
    def sums_along_k(self) -> int:
        """Sums of which a result is added up."""
        return self.split_k * self.warps_k

    @property
    def cluster_size(self) -> int:
        return self.split_k
