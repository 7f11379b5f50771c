"""What the project knows of the kernel ``rows``."""

from __future__ import annotations

import dataclasses
from typing import Any

from kernel_space.core.config import KernelConfig, flag, number
from kernel_space.core.kernel import Kernel


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsConfig(KernelConfig, kernel="rows"):
    """``rows`` of a CTA, one warp each; ``vec`` elements that a lane takes at once; ``fused``: one kernel makes both
    outputs, else one kernel each; ``use_pdl``: launches overlap what runs before them.
    """

    rows: int = number(4)
    vec: int = number(2)
    fused: bool = flag(True)
    use_pdl: bool = flag()


def _rows(config: RowsConfig, problem: Any) -> str | None:
    return None if 1 <= config.rows <= 32 else f"rows must be 1 to 32, got {config.rows}"


def _vec(config: RowsConfig, problem: Any) -> str | None:
    if config.vec not in (1, 2, 4, 8):
        return f"vec must be 1, 2, 4 or 8, got {config.vec}"
    return f"vec must divide K, got {config.vec} at K = {problem.k}" if problem.k % config.vec else None


KERNEL = Kernel(
    name="rows",
    operator="rowstats",
    archs=("sm_90a", "sm_100a", "sm_103a"),
    source=f"{__package__}.kernel",
    config_class=RowsConfig,
    knob_rules={"rows": _rows, "vec": _vec},
)
