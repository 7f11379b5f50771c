"""SmoothMmaConfig: one point of the space of the kernel ``smooth_mma``."""

from __future__ import annotations

import dataclasses

from kernel_space.operators.nvfp4_quantize.lora_mma.config import LoraMmaConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmoothMmaConfig(LoraMmaConfig, kernel="smooth_mma"):
    """Knobs of the kernel ``smooth_mma``: those of ``lora_mma``. A *chunk* is 64 elements along K.

    ``rows_per_warp``  rows of x that a warp smooths and multiplies at once: 16 or 32
    ``warps_m``        warps of a CTA on rows below each other; they share chunks of lora_down
    ``warps_k``        warps of a CTA on the same rows, which take turns with the chunks of its part of K
    ``split_k``        CTAs of a cluster that share rows along K; sums are added in a fixed order
    ``split_r``        CTAs that share rows and K, each with its part of R; they take turns with smoothing chunks
    ``num_b_stage``    SMEM ring slots of lora_down for each of the warps along K, a chunk each
    ``prefetch_dist``  chunks between the one that is loaded to registers and the one that is brought to L2; 0: none is
    ``ctas_per_sm``    CTAs that must fit on an SM at once: bounds the registers of a thread
    ``use_pdl``        programmatic dependent launch: smooth and lora_down are read while the previous kernel ends
    """
