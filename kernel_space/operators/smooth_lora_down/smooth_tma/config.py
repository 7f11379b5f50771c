"""SmoothTmaConfig: one point of the space of the kernel ``smooth_tma``."""

from __future__ import annotations

import dataclasses

from kernel_space.operators.nvfp4_quantize.lora_tma.config import LoraTmaConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmoothTmaConfig(LoraTmaConfig, kernel="smooth_tma"):
    """Knobs of the kernel ``smooth_tma``: those of ``lora_tma``. A *chunk* is 64 elements along K.

    ``tile_m``       rows of x of a CTA: a multiple of 8, N of its wgmma
    ``quant_warps``  warps that smooth: 4, 8 or 12
    ``split_k``      CTAs of a cluster that share rows along K; sums are added in a fixed order
    ``num_stage``    SMEM ring slots, a chunk of x, of lora_down and of 1 / smooth each; ``auto`` = the most that fit
    ``ctas_per_sm``  CTAs that must fit on an SM at once: bounds shared memory and the registers of a thread
    ``use_pdl``      programmatic dependent launch: smooth and lora_down are read while the previous kernel ends
    """
