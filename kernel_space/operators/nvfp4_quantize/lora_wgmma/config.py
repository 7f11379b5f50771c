"""LoraWgmmaConfig: one point of the space of the kernel ``lora_wgmma``."""

from __future__ import annotations

import dataclasses

from kernel_space.core.config import KernelConfig, flag, number, stages
from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K

LANES, GROUP_WARPS = 32, 4
WARP_ROWS = 16  # of one warp of a wgmma


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoraWgmmaConfig(KernelConfig, kernel="lora_wgmma"):
    """Knobs of the kernel ``lora_wgmma``. A *chunk* is 64 elements along K; a warpgroup has 64 rows.

    ``groups_m``       warpgroups of a CTA on rows below each other; they share chunks of lora_down
    ``groups_k``       warpgroups of a CTA on the same rows, which take turns with the chunks of its part of K
    ``split_k``        CTAs of a cluster that share rows along K; sums are added in a fixed order
    ``num_b_stage``    SMEM ring slots of lora_down for each of the warpgroups along K, a chunk each
    ``num_x_stage``    SMEM ring slots of x for each warpgroup, a chunk each: copies run so many chunks ahead
    ``ctas_per_sm``    CTAs that must fit on an SM at once: bounds the registers of a thread
    ``use_pdl``        programmatic dependent launch: smooth and lora_down are read while the previous kernel ends
    """

    groups_m: int = number(2)
    groups_k: int = number(1)
    split_k: int = number(1)
    num_b_stage: int | str = stages()
    num_x_stage: int = number(2)
    ctas_per_sm: int = number(1)
    use_pdl: bool = flag()

    # What ``LoraMmaLayouts`` asks of a config.

    @property
    def rows_per_warp(self) -> int:
        return WARP_ROWS

    @property
    def warps_m(self) -> int:
        return GROUP_WARPS * self.groups_m

    @property
    def warps_k(self) -> int:
        return self.groups_k

    @property
    def split_r(self) -> int:
        return 1

    @property
    def warps(self) -> int:
        return self.warps_m * self.warps_k

    @property
    def threads(self) -> int:
        return LANES * self.warps

    @property
    def tile_m(self) -> int:
        """Rows of a CTA."""
        return self.warps_m * WARP_ROWS

    @property
    def tile_mk(self) -> tuple[int, int]:
        """Rows of a CTA, and the elements along K that its warpgroups stand on at once."""
        return self.tile_m, CHUNK_K * self.groups_k

    @property
    def sums_along_k(self) -> int:
        """Sums of which a result is added up."""
        return self.split_k * self.groups_k

    @property
    def cluster_size(self) -> int:
        return self.split_k
