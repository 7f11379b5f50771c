"""SmoothTmaConfig: one point of the space of the kernel ``smooth_tma``."""

from __future__ import annotations

import dataclasses

from kernel_space.operators.nvfp4_quantize.lora_tma.config import LoraTmaConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmoothTmaConfig(LoraTmaConfig, kernel="smooth_tma"):
    """Knobs of the kernel ``smooth_tma``: those of ``lora_tma``. A *chunk* is 64 elements along K.

    ``tile_m``       rows of x of a CTA: a multiple of 8, N of its wgmma
    ``quant_warps``  warps that smooth: 4, 8, 12 or 16
    ``turns``        groups of these, of which each has a chunk of its own; the warps of one share its rows
    ``split_k``      CTAs of a cluster that share rows along K; sums are added in a fixed order
    ``num_stage``    SMEM ring slots, a chunk of x, of lora_down and of 1 / smooth each; ``auto`` = the most that fit
    ``prefetch_dist``  chunks of x that are brought to the L2 ahead of those that are loaded
    ``ctas_per_sm``  CTAs that must fit on an SM at once: bounds shared memory and the registers of a thread
    ``use_pdl``      programmatic dependent launch: smooth and lora_down are read while the previous kernel ends
    """
