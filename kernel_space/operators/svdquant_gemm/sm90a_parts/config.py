"""What the configs of the sm_90a kernels have in common: their tile, and how consumer warpgroups share it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kernel_space.operators.svdquant_gemm.gemm_config import GemmConfig

MMA_ROWS = 64  # rows of one wgmma instruction
STREAM_CTAS = 144  # SMs of a full GH100, hence CTAs that may publish a part of a tile
STREAM_PARTS = 8  # parts of a tile that stream-K aims at, at most


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sm90aConfig(GemmConfig):
    """Base of the config classes for sm_90a. "Rows" are rows of the register operand, "columns" of the other one."""

    if TYPE_CHECKING:
        tile_mnk: tuple[int, int, int]
        consumer_warpgroups: int

    @property
    def cta_tile_mnk(self) -> tuple[int, int, int]:
        """What one CTA owns."""
        return self.tile_mnk


@dataclasses.dataclass(frozen=True, kw_only=True)
class RingsConfig(Sm90aConfig):
    """Of a kernel with rings of packed operands, of fp16 columns and of LoRA slices, and consumers that stage y."""

    if TYPE_CHECKING:
        pingpong: bool
        stream_k: bool
        epi_tile_n: int
        wgmma_k: int
        num_ab_stage: int | str
        num_dq_stage: int | str
        num_lora_stage: int | str
        num_c_stage: int | str
        num_dequant_warpgroups: int

        @property
        def usual_epi_tile_n(self) -> int: ...

    @property
    def row_blocks(self) -> int:
        """Blocks of 64 rows of a tile that one consumer warpgroup owns."""
        return self.tile_mnk[0] // (MMA_ROWS * self.warpgroups_of_tile)

    @property
    def accumulators(self) -> int:
        """fp32 accumulators of a consumer thread."""
        return self.row_blocks * self.tile_mnk[1] // 2

    @property
    def warpgroups_of_tile(self) -> int:
        """Consumer warpgroups that share the rows of a tile."""
        return 1 if self.pingpong else self.consumer_warpgroups

    @property
    def staged_columns(self) -> int:
        """Columns of the tile that a consumer warp stages at a time."""
        return self.epi_tile_n or self.usual_epi_tile_n

    @property
    def staged_parts(self) -> int:
        """Parts in which a consumer warp stages what it holds of a tile."""
        return self.row_blocks * -(-self.tile_mnk[1] // self.staged_columns)
