"""What the links of the layer are asked of a kernel that does the work of all of them in one launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from kernel_space.core.operator import Comparison


class OneLaunch:
    """Base of a config, beside that with its knobs."""

    if TYPE_CHECKING:
        tile_mnk: tuple[int, int, int]

        @property
        def partial_sums(self) -> int: ...

        @property
        def swap_ab(self) -> bool: ...

    def of(self, link: str) -> Self:
        """What each link is judged by: this one kernel."""
        return self

    @property
    def left_out(self) -> tuple[str, ...]:
        """Outputs of the links that nobody needs in one launch."""
        return ("xs",)

    @property
    def sums_along_k(self) -> int:
        """Of which a result of ``lora_act_in`` is added up."""
        return self.partial_sums

    @property
    def tile_mk(self) -> tuple[int, int]:
        """Rows of x and K of a step, as ``lora_down`` names them."""
        rows, columns, step = self.tile_mnk
        return (columns if self.swap_ab else rows, step)

    @property
    def splits_in_workspace(self) -> int:
        return 1


class ScaledWeights(OneLaunch):
    """Base of a config whose kernel multiplies x as it is, and weights over smooth in 16 bits; clusters share K."""

    def judge(self, problem: Any, tensors: Mapping[str, Any]) -> Mapping[str, Comparison]:
        """How outputs compare with float64, weights rounded as these kernels round them: no link checks that."""
        from kernel_space.operators.svdquant_linear_16bit.fused.judge import judge

        return judge(problem, tensors, self)
