"""MergedConfig: one point of the space of the kernel ``merged``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from kernel_space.core.config import flag, number, sizes, stages, word
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import STREAM_CTAS, STREAM_PARTS, RingsConfig
from kernel_space.operators.svdquant_linear_16bit.one_launch import OneLaunch

if TYPE_CHECKING:
    from kernel_space.core.operator import Comparison

USUAL_EPI_TILE_N = 32
REGISTERS = (24, 240)  # of a thread that loads, and of one that multiplies


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergingConfig(RingsConfig):
    """Of a kernel that merges weights and multiplies them. "Rows" are rows of weights, "columns" rows of x: the second
    kernel computes y.T.

    ``tile_mnk``            rows, columns, K elements of one CTA tile of the second kernel and of one slot of its ring
    ``consumer_warpgroups``  warpgroups that share the rows of a tile; each owns a multiple of 64
    ``cluster_shape_mn``    CTAs per cluster along rows, columns; with 2x1 both share x by multicast, with 1x2 weights
    ``num_ab_stage``        SMEM ring slots of merged weights and x; ``auto`` = the most that fit
    ``epi_tile_n``          columns of the tile that a consumer warp stages at a time of its 16 rows, on their way from
                            registers to y; 0 is 32
    ``raster_order``        ``m``: consecutive tiles walk along rows first; ``n``: along columns first
    ``swizzle_size``        clusters per band of the raster; 1 = none
    ``stream_k``            tiles of the last, ragged waves are dealt out by k-tiles, in equal shares; partial sums are
                            added in a fixed order, through the workspace
    ``merge_chunks``        chunks of 64 K that a CTA of the first kernel merges of its rows
    ``use_pdl``             programmatic dependent launch: the first kernel loads while the kernel before still works
    """

    sized_by: ClassVar[tuple[str, ...]] = ("tile_mnk", "consumer_warpgroups", "epi_tile_n", "merge_chunks")
    """Knobs that the size of an allocation depends on."""

    tile_mnk: tuple[int, int, int] = sizes(128, 128, 64, form="RxCxK such as 128x128x64")
    consumer_warpgroups: int = number(2)
    cluster_shape_mn: tuple[int, int] = sizes(1, 1, form="MxN such as 2x1")
    num_ab_stage: int | str = stages()
    epi_tile_n: int = number(0)
    raster_order: str = word("m", "n")
    swizzle_size: int = number(1)
    stream_k: bool = flag()
    merge_chunks: int = number(6)
    use_pdl: bool = flag()

    # Knobs of other kernels whose loops, layouts and epilogue this one has.

    @property
    def swap_ab(self) -> bool:
        """The kernel computes y.T: its rows run over N of the problem."""
        return True

    @property
    def pingpong(self) -> bool:
        return False

    @property
    def split_k(self) -> int:
        return 1

    @property
    def expands_act(self) -> bool:
        """For the layouts: columns come as they are multiplied."""
        return True

    @property
    def num_dq_stage(self) -> int | str:
        """Slots of x: those of weights."""
        return self.num_ab_stage

    @property
    def num_lora_stage(self) -> int:
        return 0

    @property
    def num_c_stage(self) -> int:
        """What a warp transposes of y leaves SMEM before the next piece."""
        return 1

    @property
    def num_dequant_warpgroups(self) -> int:
        """None: the layouts ask for one where columns are packed."""
        return 1

    @property
    def usual_epi_tile_n(self) -> int:
        """What ``epi_tile_n=0`` stands for."""
        return USUAL_EPI_TILE_N

    def sums_in_workspace(self, tiles: int) -> tuple[int, int]:
        if self.stream_k:
            return STREAM_CTAS * 4 * self.consumer_warpgroups, STREAM_CTAS
        return 0, 0

    @property
    def partial_sums(self) -> int:
        # A share has at least floor(1 / STREAM_PARTS) of a tile's units, and tiles begin and end within shares.
        return 2 * STREAM_PARTS + 1 if self.stream_k else 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergedConfig(OneLaunch, MergingConfig, kernel="merged"):
    """Knobs of ``merged``, and what the links of the layer are asked."""

    @property
    def left_out(self) -> tuple[str, ...]:
        """Outputs of the links that nobody needs: the low-rank branch is in the weights."""
        return ("xs", "lora_act_in")

    @property
    def sums_along_k(self) -> int:
        """Of which a result of ``lora_act_in`` would be added up."""
        return 1

    def judge(self, problem: Any, tensors: Mapping[str, Any]) -> Mapping[str, Comparison]:
        """How y compares with float64, weights rounded as the first kernel rounds them: no link's own check is that."""
        from kernel_space.operators.svdquant_linear_16bit.merged.judge import judge

        return judge(problem, tensors, self)
