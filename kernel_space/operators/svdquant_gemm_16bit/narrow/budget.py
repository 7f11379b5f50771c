"""SMEM budget of a configuration of ``narrow``, and its stage solver."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from kernel_space.core.arch import Arch
from kernel_space.core.budget import Footprint
from kernel_space.core.config import AUTO
from kernel_space.core.problem import ProblemClass
from kernel_space.core.registry import kernel
from kernel_space.operators.svdquant_gemm.sm90a_parts.budget import BudgetSm90a, fill_rings, share_of_smem
from kernel_space.operators.svdquant_gemm_16bit.narrow.config import NarrowConfig

SIZED_BY = ("tile_mnk", "consumer_warpgroups")  # knobs that the size of a slot depends on
MOST_AB_STAGES, MOST_DQ_STAGES = 4, 3
SUM_COLUMNS = 16  # of a warp's 32 rows, whose fp32 sums a slot of packed weights can hold


def least_ab(config: NarrowConfig) -> int:
    """Slots of weights: two, and as many as hold the sums of a warp, which come over them in the end."""
    return max(2, config.tile_mnk[1] // SUM_COLUMNS)


def layouts(config: NarrowConfig, problem_class: ProblemClass) -> Any:
    """What the kernel allocates; imports the DSL, needs an MLIR context."""
    from kernel_space.operators.svdquant_gemm_16bit.narrow.layouts import NarrowLayouts

    return NarrowLayouts(config, problem_class)


def footprint(config: NarrowConfig, problem_class: ProblemClass, arch: Arch) -> Footprint:
    """The footprint of a config's class; stage counts and what else does not size a slot do not enter it."""
    sized_by = tuple(getattr(config, name) for name in SIZED_BY)
    # Not the class of ``config``: a search asks with configs that do not have their values yet.
    kind: Any = kernel(problem_class.operator, config.kernel).config_class
    return _read_footprint(kind, sized_by, config.split_k, problem_class, arch.name)


@functools.cache
def _read_footprint(
    kind: Callable[..., NarrowConfig],
    sized_by: tuple[Any, ...],
    split_k: int,
    problem_class: ProblemClass,
    arch_name: str,
) -> Footprint:
    # Imported here: build_key and the stores behind it are not needed by those who only print budgets.
    from kernel_space.build.readback import footprint_fields

    knobs = dict(zip(SIZED_BY, sized_by, strict=True))
    one_slot = kind(**knobs, num_ab_stage=1, num_dq_stage=1, split_k=split_k)
    return Footprint(**footprint_fields(one_slot, problem_class, arch_name))


def budget(config: NarrowConfig, problem_class: ProblemClass, arch: Arch) -> BudgetSm90a:
    """Budget of a config whose stage counts are numbers; whether it fits is for the caller to see."""
    limit = share_of_smem(config.ctas_per_sm, arch)
    return BudgetSm90a(footprint(config, problem_class, arch), config, arch, limit)


def solve_stages(config: NarrowConfig, problem_class: ProblemClass, arch: Arch) -> NarrowConfig:
    """Replace every ``auto`` by a count that fits: a slot of xs, then up to 4 of weights, then a second one of xs."""
    fixed = config.num_ab_stage
    least = {"ab": least_ab(config), "dq": 1}
    most = MOST_DQ_STAGES if fixed == AUTO else min(MOST_DQ_STAGES, int(fixed) - config.dequant_ahead)
    wishes = [("ab", MOST_AB_STAGES), ("dq", most)]
    foot = footprint(config, problem_class, arch)
    found = fill_rings(config, foot, least, wishes, share_of_smem(config.ctas_per_sm, arch))
    slots: Any = found.num_ab_stage
    if config.num_dq_stage == AUTO:  # an xs slot has its weights before it
        found = found.replace(num_dq_stage=max(1, min(int(found.num_dq_stage), slots - config.dequant_ahead)))
    return found
