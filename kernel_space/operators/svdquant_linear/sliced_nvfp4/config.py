"""SlicedNvfp4Config: one point of the space of the kernel ``sliced_nvfp4``."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from kernel_space.core.config import number
from kernel_space.operators.svdquant_linear_16bit.one_launch import OneLaunch
from kernel_space.operators.svdquant_linear_16bit.sliced.config import SlicedKnobs


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlicedNvfp4Config(OneLaunch, SlicedKnobs, kernel="sliced_nvfp4"):
    """Knobs of ``sliced_nvfp4``: those of ``sliced``, and

    ``quantize_parts``      parts of a tile of rows of x, each quantized by the CTA that comes to it first
    """

    smooth_bytes: ClassVar[int] = 0  # it is in x

    quantize_parts: int = number(64)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Outputs of the links that nobody needs in one launch: their product lies in the workspace."""
        return ("act", "ascales")
