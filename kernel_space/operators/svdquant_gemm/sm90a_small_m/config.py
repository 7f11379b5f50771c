"""SmallMConfig: one point of the space of the kernel ``sm90a_small_m``."""

from __future__ import annotations

import dataclasses

from kernel_space.core.config import flag, number, sizes, stages, word
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import Sm90aConfig

LEAST_WGMMA_STAGES = 3  # slots of weights with wgmma: they hold the sums of a cluster
# Registers per thread of loading, dequantizing and consumer warps with wgmma, by consumer and dequantizing warpgroups
# and CTAs per SM. At launch every warpgroup has an equal share of the 64 K, in eights; only consumers may then take
# more.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmallMConfig(Sm90aConfig, kernel="sm90a_small_m"):
    """Knobs of ``sm90a_small_m``: one wave of CTAs, K split over a cluster. "Rows" are rows of the register operand,
    "columns" rows of the other one.

    ``tile_mnk``            rows, columns of one CTA tile; 128 K elements of one slot of the packed ring
    ``consumer_warpgroups``  warpgroups that share the rows of a tile (wgmma), or rows and K (mma.sync)
    ``num_ab_stage``        SMEM ring slots of packed operands; ``auto`` = the most that fit
    ``num_dq_stage``        SMEM ring slots of the dequantized columns, 128 K elements each, or 64 (``dq_slot_halves``);
                            0 takes mma.sync in place of wgmma
    ``register_operand``    ``act`` or ``wgt``: which one wgmma takes from registers; ``wgt`` computes y.T
    ``num_dequant_warpgroups``  warpgroups that dequantize weights as columns
    ``ctas_per_sm``         CTAs that share an SM; with ``use_pdl`` the second belongs to the next launch
    ``split_k``             CTAs of a cluster that share one output tile along K; reduced in a fixed order
    ``use_pdl``             programmatic dependent launch: prologue and loads of weights overlap the previous kernel
    """

    tile_mnk: tuple[int, int, int] = sizes(32, 8, 128, form="RxCxK such as 32x8x128")
    consumer_warpgroups: int = number(2)
    num_ab_stage: int | str = stages()
    num_dq_stage: int | str = stages()
    register_operand: str = word("act", "wgt")
    num_dequant_warpgroups: int = number(1)
    ctas_per_sm: int = number(1)
    split_k: int = number(1)
    use_pdl: bool = flag()

    @property
    def cluster_shape_mn(self) -> tuple[int, int]:
        """As far as tiles are counted: the cluster lies along K."""
        return (1, 1)

    @property
    def swap_ab(self) -> bool:
        """Whether the kernel computes y.T: its rows run over N of the problem."""
        return self.register_operand == "wgt"

    @property
    def splits_in_workspace(self) -> int:
        return 1

    @property
    def warp_rows(self) -> int:
        """Weight rows of one warp."""
        return 32 if self.num_dq_stage == 0 else 16

    @property
    def role_registers(self) -> tuple[int, int, int]:
        """With wgmma: registers per thread of loading, dequantizing and consumer warps."""
        return ROLE_REGISTERS[self.consumer_warpgroups, self.num_dequant_warpgroups, self.ctas_per_sm]

    @property
    def dq_slot_halves(self) -> int:
        """With wgmma: halves of 64 K elements in a dq slot. Beside the next launch's CTA a ring of weights is small,
        and halves make the most of it; elsewhere they cost more waits (11.8 instead of 10.7 us at M = 128, H200).
        """
        return 1 if self.ctas_per_sm == 2 and not self.swap_ab else 2

    @property
    def partial_sums(self) -> int:
        return self.split_k * 4 * self.consumer_warpgroups * self.warp_rows // self.tile_mnk[0]
