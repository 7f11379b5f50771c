"""What the configs of all kernels of this operator have in common: tiles, splits of K, and which operand is A."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kernel_space.core.config import KernelConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class GemmConfig(KernelConfig):
    """Base of the config classes of ``svdquant_gemm``, without knobs of its own."""

    if TYPE_CHECKING:  # knobs and properties that every kernel's config has
        cluster_shape_mn: tuple[int, int]
        split_k: int
        swap_ab: bool
        use_pdl: bool

        @property
        def cta_tile_mnk(self) -> tuple[int, int, int]: ...

    @property
    def mma_tile_mn(self) -> tuple[int, int]:
        """Rows and columns of what one MMA computes, by one CTA or two."""
        return self.cta_tile_mnk[:2]

    @property
    def expands_act(self) -> bool:
        """Whether a launch expands the activations into the workspace first."""
        return False

    @property
    def splits_in_workspace(self) -> int:
        """CTAs that share an output tile along K and add their sums through the workspace."""
        return self.split_k

    def sums_in_workspace(self, tiles: int) -> tuple[int, int]:
        """For ``tiles`` CTA tiles of output: int32 counters, and CTA tiles of fp32 sums behind them."""
        splits = self.splits_in_workspace
        return (tiles, tiles * splits) if splits > 1 else (0, 0)

    @property
    def partial_sums(self) -> int:
        """Parts of K that are summed apart and then added."""
        return self.split_k

    @property
    def cluster_size(self) -> int:
        return self.cluster_shape_mn[0] * self.cluster_shape_mn[1]
