"""NarrowConfig: one point of the space of the kernel ``narrow``."""

from __future__ import annotations

import dataclasses

from kernel_space.core.config import flag, number, sizes, stages
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import Sm90aConfig

WARP_ROWS = 32  # rows of weights of a warp


@dataclasses.dataclass(frozen=True, kw_only=True)
class NarrowConfig(Sm90aConfig, kernel="narrow"):
    """Knobs of ``narrow``: one wave of CTAs, K split over the warps of a CTA and over a cluster. "Rows" are rows of
    weights, "columns" rows of xs: the kernel computes y.T.

    ``tile_mnk``            rows, columns of one CTA tile; 128 K elements of one unit
    ``consumer_warpgroups``  warpgroups whose warps share the rows of a tile, 32 each, and K
    ``num_ab_stage``        SMEM ring slots of packed weights of a warp, a unit each; ``auto`` = up to 4
    ``num_dq_stage``        SMEM ring slots of xs of the warps that share a part of K, a unit each
    ``dequant_ahead``       1 dequantizes a unit of weights before its xs is waited for, the first one before the kernel
                            before has ended, and holds it in registers; 0 as it is multiplied
    ``ctas_per_sm``         CTAs that the registers of an SM are shared out to
    ``split_k``             CTAs of a cluster that share one output tile along K; reduced in a fixed order
    ``use_pdl``             programmatic dependent launch: prologue and loads of weights overlap the previous kernel
    """

    tile_mnk: tuple[int, int, int] = sizes(32, 8, 128, form="RxCxK such as 32x8x128")
    consumer_warpgroups: int = number(1)
    num_ab_stage: int | str = stages()
    num_dq_stage: int | str = stages()
    dequant_ahead: int = number(1)
    ctas_per_sm: int = number(1)
    split_k: int = number(1)
    use_pdl: bool = flag()

    @property
    def cluster_shape_mn(self) -> tuple[int, int]:
        """As far as tiles are counted: the cluster lies along K."""
        return (1, 1)

    @property
    def swap_ab(self) -> bool:
        """The kernel computes y.T: its rows run over N of the problem."""
        return True

    @property
    def splits_in_workspace(self) -> int:
        return 1

    @property
    def warps_n(self) -> int:
        """Warps beside each other along the rows of a tile, which read the same xs."""
        return self.tile_mnk[0] // WARP_ROWS

    @property
    def warps_k(self) -> int:
        """Parts of K in a CTA."""
        return 4 * self.consumer_warpgroups // self.warps_n

    @property
    def partial_sums(self) -> int:
        return self.split_k * self.warps_k
