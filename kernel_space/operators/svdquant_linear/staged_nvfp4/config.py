"""StagedNvfp4Config: one point of the space of the kernel ``staged_nvfp4``."""

from __future__ import annotations

import dataclasses

from kernel_space.core.config import number
from kernel_space.operators.svdquant_linear_16bit.one_launch import OneLaunch
from kernel_space.operators.svdquant_linear_16bit.staged.config import StagedKnobs


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagedNvfp4Config(OneLaunch, StagedKnobs, kernel="staged_nvfp4"):
    """Knobs of ``staged_nvfp4``: those of ``staged``, and

    ``quantize_parts``      parts of a tile of rows of x, each quantized by the CTA that comes to it first
    """

    quantize_parts: int = number(64)

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster: of as many clusters as a card holds at once each CTA may have a part."""
        return self.split_k * self.share

    @property
    def left_out(self) -> tuple[str, ...]:
        """Outputs of the links that nobody needs in one launch: their product lies in the workspace."""
        return ("act", "ascales")
