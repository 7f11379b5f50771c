"""SMEM budget of a configuration of ``sm90a_expand``, and its stage solver."""

from __future__ import annotations

import functools
from typing import Any

from kernel_space.core.arch import Arch
from kernel_space.core.budget import Footprint
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.sm90a_expand.config import ExpandConfig
from kernel_space.operators.svdquant_gemm.sm90a_parts.budget import (
    MOST_AB_STAGES,
    MOST_LORA_STAGES,
    RESERVED_PER_CTA,
    WANTED_AB_STAGES,
    BudgetSm90a,
    fill_rings,
)

# Knobs that the size of a slot depends on; beside them, whether K is split.
SIZED_BY = ("tile_mnk", "consumer_warpgroups", "pingpong", "epi_tile_n")
# Slots of expanded activations. Beyond FEW_COLUMNS columns more than 6 were not faster; of 64x128 10 were 2 % faster
# than 6 at M = 128 and 256, of 128x128 8 were 1 % at M = 256 and 512 (H200).
MOST_EXPANDED_STAGES, FEW_COLUMNS = 6, 128
MOST_NARROW_STAGES = {1: 10, 2: 8}  # by consumer warpgroups
EXPANDING_BLOCKS = 4  # of the first kernel that have room beside a CTA where ``shares_sm_with_expansion``


def layouts(config: ExpandConfig, problem_class: ProblemClass) -> Any:
    """What the second kernel allocates; imports the DSL, needs an MLIR context."""
    from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import LayoutsSm90a

    return LayoutsSm90a(config, problem_class)


def smem_limit(config: ExpandConfig, arch: Arch) -> int:
    """Bytes one CTA may take: each block of the first kernel beside it takes 1 KB that the system reserves."""
    beside = EXPANDING_BLOCKS * RESERVED_PER_CTA if config.shares_sm_with_expansion else 0
    return arch.smem_capacity - beside


def footprint(config: ExpandConfig, problem_class: ProblemClass, arch: Arch) -> Footprint:
    """The footprint of a config's class; stage counts, raster and scheduling knobs do not enter it."""
    sized_by = tuple(getattr(config, name) for name in SIZED_BY)
    return _read_footprint(sized_by, 2 if config.split_k > 1 else 1, problem_class, arch.name)


@functools.cache
def _read_footprint(
    sized_by: tuple[Any, ...], split_k: int, problem_class: ProblemClass, arch_name: str
) -> Footprint:
    # Imported here: build_key and the stores behind it are not needed by those who only print budgets.
    from kernel_space.build.readback import footprint_fields

    stages: dict[str, Any] = dict.fromkeys(ExpandConfig.stage_names(), 1)
    one_slot = ExpandConfig(**dict(zip(SIZED_BY, sized_by, strict=True)), **stages, split_k=split_k)
    return Footprint(**footprint_fields(one_slot, problem_class, arch_name))


def budget(config: ExpandConfig, problem_class: ProblemClass, arch: Arch) -> BudgetSm90a:
    """Budget of a config whose stage counts are numbers; whether it fits is for the caller to see."""
    return BudgetSm90a(footprint(config, problem_class, arch), config, arch, smem_limit(config, arch))


def solve_stages(config: ExpandConfig, problem_class: ProblemClass, arch: Arch) -> ExpandConfig:
    """Replace every ``auto`` by a count that fits, in this order of preference.

    1. 2 packed slots, 2 slots of activations and, with LoRA, 1 of its ring.
    2. A third packed slot, then a second LoRA slot.
    3. Up to 6 slots of activations, of up to 128 columns 8, with one consumer warpgroup 10.
    4. Packed slots take what is left, up to 16.
    """
    wishes = [
        ("ab", WANTED_AB_STAGES),
        ("lora", MOST_LORA_STAGES if problem_class.r else 0),
        ("dq", most_expanded_stages(config)),
        ("ab", MOST_AB_STAGES),
    ]
    least = {"dq": 2, "ab": 2, "lora": 1 if problem_class.r else 0, "c": 1}
    foot = footprint(config, problem_class, arch)
    return fill_rings(config, foot, least, wishes, smem_limit(config, arch))


def most_expanded_stages(config: ExpandConfig) -> int:
    """Slots of activations that are taken at most when left to ``auto``."""
    narrow = config.tile_mnk[1] <= FEW_COLUMNS
    return MOST_NARROW_STAGES[config.consumer_warpgroups] if narrow else MOST_EXPANDED_STAGES
