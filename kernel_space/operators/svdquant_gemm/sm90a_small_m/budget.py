"""SMEM budget of a configuration of ``sm90a_small_m``, and its stage solver."""

from __future__ import annotations

import functools
from typing import Any

from kernel_space.core.arch import Arch
from kernel_space.core.budget import Footprint
from kernel_space.core.config import AUTO
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.sm90a_parts.budget import BudgetSm90a, fill_rings, share_of_smem
from kernel_space.operators.svdquant_gemm.sm90a_small_m.config import LEAST_WGMMA_STAGES, SmallMConfig

# Knobs that the size of a slot depends on: the sums of a cluster depend on its size, dq slots on CTAs per SM; beside
# them, whether there are dq slots at all: without it is another design.
SIZED_BY = ("tile_mnk", "consumer_warpgroups", "register_operand", "split_k", "ctas_per_sm")
LEAST_STAGES, MOST_STAGES = 2, 4  # more than one warp has units for at K = 3840 were not faster (H200)
WGMMA_COLUMNS = 32  # from here on wgmma is faster than mma.sync (H200)
# Slots of a unit with wgmma, of act and of weights (4 were 2 % faster than 3 at M = 128, H200); packed slots.
WANTED_DQ_STAGES, WANTED_WGT_DQ_STAGES, MOST_WGMMA_STAGES = 3, 4, 8
LEAST_HALF_STAGES, WANTED_HALF_STAGES = 3, 8  # slots of half a unit: one written, two being read


def layouts(config: SmallMConfig, problem_class: ProblemClass) -> Any:
    """What the kernel allocates; imports the DSL, needs an MLIR context."""
    if wanted_dq(config):
        from kernel_space.operators.svdquant_gemm.sm90a_small_m.layouts_wgmma import LayoutsSmallMWgmma

        return LayoutsSmallMWgmma(config, problem_class)
    from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.layouts import LayoutsSmallM

    return LayoutsSmallM(config, problem_class)


def footprint(config: SmallMConfig, problem_class: ProblemClass, arch: Arch) -> Footprint:
    """The footprint of a config's class; stage counts and ``use_pdl`` do not enter it."""
    sized_by = tuple(getattr(config, name) for name in SIZED_BY)
    return _read_footprint(sized_by, min(wanted_dq(config), 1), problem_class, arch.name)


@functools.cache
def _read_footprint(
    sized_by: tuple[Any, ...], num_dq_stage: int, problem_class: ProblemClass, arch_name: str
) -> Footprint:
    # Imported here: build_key and the stores behind it are not needed by those who only print budgets.
    from kernel_space.build.readback import footprint_fields

    knobs = dict(zip(SIZED_BY, sized_by, strict=True))
    one_slot = SmallMConfig(**knobs, num_ab_stage=1, num_dq_stage=num_dq_stage)
    return Footprint(**footprint_fields(one_slot, problem_class, arch_name))


def budget(config: SmallMConfig, problem_class: ProblemClass, arch: Arch) -> BudgetSm90a:
    """Budget of a config whose stage counts are numbers; whether it fits is for the caller to see."""
    limit = share_of_smem(config.ctas_per_sm, arch)
    return BudgetSm90a(footprint(config, problem_class, arch), config, arch, limit)


def solve_stages(config: SmallMConfig, problem_class: ProblemClass, arch: Arch) -> SmallMConfig:
    """Replace every ``auto`` by a count that fits: up to 4 packed slots. With wgmma: 3 packed slots, a third dq slot
    (of weights a fourth, of halves up to 8), up to 8 packed.
    """
    least, most = LEAST_STAGES, MOST_STAGES
    if wanted_dq(config):
        least, most = LEAST_WGMMA_STAGES, MOST_WGMMA_STAGES
    slots = {"dq": min(wanted_dq(config), least_dq(config)), "ab": least}
    wishes = [("dq", wanted_dq(config)), ("ab", most)]
    foot = footprint(config, problem_class, arch)
    return fill_rings(config, foot, slots, wishes, share_of_smem(config.ctas_per_sm, arch))


def least_dq(config: SmallMConfig) -> int:
    """dq slots without which a kernel with wgmma cannot go on."""
    return LEAST_HALF_STAGES if config.dq_slot_halves == 1 else 2


def wanted_dq(config: SmallMConfig) -> int:
    """``auto``: wgmma where there are columns enough for it, with a slot to write, one to wait for and one to read; of
    weights one more, and of their halves as many as fit, as those are filled while the previous launch runs.
    """
    if config.num_dq_stage != AUTO:
        return int(config.num_dq_stage)
    if config.tile_mnk[1] < WGMMA_COLUMNS:
        return 0
    if config.dq_slot_halves == 1:
        return WANTED_HALF_STAGES
    return WANTED_DQ_STAGES if config.swap_ab else WANTED_WGT_DQ_STAGES
