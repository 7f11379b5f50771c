"""MergedFp8Config: one point of the space of the kernel ``merged_fp8``."""

from __future__ import annotations

import dataclasses

from kernel_space.core.config import number, sizes
from kernel_space.operators.svdquant_linear_16bit.merged.config import MergingConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergedFp8Config(MergingConfig, kernel="merged_fp8"):
    """Knobs of ``merged_fp8``: those of ``merged``, with 128 K in a slot, and

    ``quantize_rows``       rows of x that a CTA of the first kernel quantizes
    """

    tile_mnk: tuple[int, int, int] = sizes(128, 128, 128, form="RxCxK such as 128x128x128")
    quantize_rows: int = number(16)
