"""SMEM budget of a configuration of ``sliced``, and its stage solver."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from kernel_space.core.arch import Arch
from kernel_space.core.budget import Footprint
from kernel_space.core.config import AUTO
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.sm90a_parts.budget import BudgetSm90a, share_of_smem
from kernel_space.operators.svdquant_linear_16bit.sliced.config import MOST_ROUNDS, SlicedKnobs

SIZED_BY = (
    "tile_mnk",
    "consumer_warpgroups",
    "slot_warps",
    "split_k",
    "down_columns",
)  # knobs that allocations depend on


@dataclasses.dataclass(frozen=True)
class SlicedBudget(BudgetSm90a):
    """As ``BudgetSm90a``, of one ring."""

    @property
    def slots(self) -> dict[str, int]:
        config: Any = self.config
        return {"ab": int(config.num_ab_stage), "one": 1}


def layouts(config: SlicedKnobs, problem_class: ProblemClass) -> Any:
    """What the kernel allocates; imports the DSL, needs an MLIR context."""
    from kernel_space.operators.svdquant_linear_16bit.sliced.layouts import SlicedLayouts

    return SlicedLayouts(config, problem_class)


def footprint(config: SlicedKnobs, problem_class: ProblemClass, arch: Arch) -> Footprint:
    """The footprint of a config's class; its stage count does not enter it."""
    kind: Any = type(config)  # classes can be hashed, which mypy does not see of dataclasses
    return _read_footprint(kind, tuple(getattr(config, name) for name in SIZED_BY), problem_class, arch.name)


@functools.cache
def _read_footprint(
    kind: type[SlicedKnobs], sized_by: tuple[Any, ...], problem_class: ProblemClass, arch_name: str
) -> Footprint:
    # Imported here: build_key and the stores behind it are not needed by those who only print budgets.
    from kernel_space.build.readback import footprint_fields

    one_slot = kind(**dict(zip(SIZED_BY, sized_by, strict=True)), num_ab_stage=1)
    return Footprint(**footprint_fields(one_slot, problem_class, arch_name))


def budget(config: SlicedKnobs, problem_class: ProblemClass, arch: Arch) -> SlicedBudget:
    """Budget of a config whose stage count is a number; whether it fits is for the caller to see."""
    return SlicedBudget(
        footprint(config, problem_class, arch), config, arch, share_of_smem(config.ctas_per_sm, arch)
    )


def solve_stages(config: SlicedKnobs, problem_class: ProblemClass, arch: Arch) -> SlicedKnobs:
    """Replace ``auto`` by two slots for each warp or pair that shares a k-tile, or by one where two do not fit. A count
    that cannot be met ends at its minimum; the budget of the result says by how much it is over.
    """
    if config.num_ab_stage != AUTO:
        return config
    foot, limit = footprint(config, problem_class, arch), share_of_smem(config.ctas_per_sm, arch)
    found = config.replace(num_ab_stage=config.sharers)
    for rounds in range(2, MOST_ROUNDS + 1):
        more = config.replace(num_ab_stage=rounds * config.sharers)
        fits = foot.smem_bytes({"ab": int(more.num_ab_stage), "one": 1}) <= limit
        # lora_down and sums lie where the slots are, and may need more room than they.
        if fits or found.lacks_room(problem_class.r):
            found = more
    return found
