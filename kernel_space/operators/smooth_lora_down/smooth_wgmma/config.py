"""SmoothWgmmaConfig: one point of the space of the kernel ``smooth_wgmma``."""

from __future__ import annotations

import dataclasses

from kernel_space.operators.nvfp4_quantize.lora_wgmma.config import LoraWgmmaConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmoothWgmmaConfig(LoraWgmmaConfig, kernel="smooth_wgmma"):
    """Knobs of the kernel ``smooth_wgmma``: those of ``lora_wgmma``. A *chunk* is 64 elements along K; a warpgroup
    has 64 rows.

    ``groups_m``       warpgroups of a CTA on rows below each other; they share chunks of lora_down
    ``groups_k``       warpgroups of a CTA on the same rows, which take turns with the chunks of its part of K
    ``split_k``        CTAs of a cluster that share rows along K; sums are added in a fixed order
    ``num_b_stage``    SMEM ring slots of lora_down for each of the warpgroups along K, a chunk each
    ``num_x_stage``    SMEM ring slots of x for each warpgroup, a chunk each: copies run so many chunks ahead
    ``ctas_per_sm``    CTAs that must fit on an SM at once: bounds the registers of a thread
    ``use_pdl``        programmatic dependent launch: smooth and lora_down are read while the previous kernel ends
    """
