"""WholeConfig: one point of the space of the kernel ``whole``."""

from __future__ import annotations

import dataclasses

from kernel_space.operators.svdquant_gemm_16bit.narrow.config import NarrowConfig
from kernel_space.operators.svdquant_linear_16bit.one_launch import OneLaunch


@dataclasses.dataclass(frozen=True, kw_only=True)
class WholeConfig(OneLaunch, NarrowConfig, kernel="whole"):
    """Knobs of ``whole``: those of ``narrow``. "Rows" are rows of weights or columns of lora_down, "columns" rows of x.

    ``tile_mnk``            rows, columns of one CTA tile; 128 K elements of one unit
    ``consumer_warpgroups``  warpgroups whose warps share the rows of a tile, 32 each, and K
    ``num_ab_stage``        SMEM ring slots of packed weights of a warp, a unit each; ``auto`` = up to 4
    ``num_dq_stage``        SMEM ring slots of x of the warps that share a part of K, a unit each
    ``dequant_ahead``       1 dequantizes a unit of weights before its x is waited for, the first one before the kernel
                            before has ended, and holds it in registers; 0 as it is multiplied
    ``ctas_per_sm``         CTAs that the registers of an SM are shared out to
    ``split_k``             CTAs of a cluster that share one tile along K; reduced in a fixed order
    ``use_pdl``             programmatic dependent launch: prologue and loads of weights overlap the previous kernel
    """
