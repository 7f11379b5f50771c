"""WholeNvfp4Config: one point of the space of the kernel ``whole_nvfp4``."""

from __future__ import annotations

import dataclasses

from kernel_space.operators.svdquant_gemm_16bit.narrow.config import NarrowConfig
from kernel_space.operators.svdquant_linear_16bit.one_launch import OneLaunch


@dataclasses.dataclass(frozen=True, kw_only=True)
class WholeNvfp4Config(OneLaunch, NarrowConfig, kernel="whole_nvfp4"):
    """Knobs of ``whole_nvfp4``: those of ``whole``, which are those of ``narrow``."""

    @property
    def left_out(self) -> tuple[str, ...]:
        """Outputs of the links that nobody needs in one launch: their product lies in shared memory."""
        return ("act", "ascales")
