"""SMEM budget of a configuration of ``fused``, and its stage solver."""

from __future__ import annotations

import functools
import math
from typing import Any

from kernel_space.core.arch import Arch
from kernel_space.core.budget import Footprint
from kernel_space.core.kernel import Room
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.sm90a_parts.budget import (
    MOST_LORA_STAGES,
    BudgetSm90a,
    fill_rings,
    share_of_smem,
)
from kernel_space.operators.svdquant_linear_16bit.fused.config import FusedConfig
from kernel_space.operators.svdquant_linear_16bit.fused.rules import LEAST
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem

SIZED_BY = ("tile_mnk", "consumer_warpgroups", "epi_tile_n", "split_k")  # knobs that allocations depend on
MOST_AB_STAGES, MOST_STAGES = 8, 16
COUNTERS = 8  # bytes of a tile of rows of x: CTAs that are ready, and that have seen it
ROOM_ALIGN = 256


def room(config: FusedConfig, problem: HalfLinearProblem) -> Room:
    """Counters of what is ready and of who has taken it."""
    if not problem.r:
        return Room()
    tiles = math.ceil(problem.m / config.tile_mnk[1])
    size = math.ceil(tiles * COUNTERS / ROOM_ALIGN) * ROOM_ALIGN
    return Room(size=size, zeroed=size)


def layouts(config: FusedConfig, problem_class: ProblemClass) -> Any:
    """What the kernel allocates; imports the DSL, needs an MLIR context."""
    from kernel_space.operators.svdquant_linear_16bit.fused.layouts import FusedLayouts

    return FusedLayouts(config, problem_class)


def footprint(config: FusedConfig, problem_class: ProblemClass, arch: Arch) -> Footprint:
    """The footprint of a config's class; stage counts do not enter it."""
    return _read_footprint(tuple(getattr(config, name) for name in SIZED_BY), problem_class, arch.name)


@functools.cache
def _read_footprint(sized_by: tuple[Any, ...], problem_class: ProblemClass, arch_name: str) -> Footprint:
    # Imported here: build_key and the stores behind it are not needed by those who only print budgets.
    from kernel_space.build.readback import footprint_fields

    stages: dict[str, Any] = dict.fromkeys(FusedConfig.stage_names(), 1)
    one_slot = FusedConfig(**dict(zip(SIZED_BY, sized_by, strict=True)), **stages)
    return Footprint(**footprint_fields(one_slot, problem_class, arch_name))


def budget(config: FusedConfig, problem_class: ProblemClass, arch: Arch) -> BudgetSm90a:
    """Budget of a config whose stage counts are numbers; whether it fits is for the caller to see."""
    limit = share_of_smem(config.ctas_per_sm, arch)
    return BudgetSm90a(footprint(config, problem_class, arch), config, arch, limit)


def solve_stages(config: FusedConfig, problem_class: ProblemClass, arch: Arch) -> FusedConfig:
    """Replace every ``auto`` by a count that fits, in this order of preference.

    1. 4 packed slots, 2 slots of x, or as many as hold a strip's sums, and, with LoRA, 1 of its ring.
    2. A second LoRA slot.
    3. Slots of x for two k-tiles, then packed slots up to 8, as many as K of most CTAs.
    4. Slots of x, up to 16.
    """
    lora = problem_class.r > 0
    least = {
        "dq": max(LEAST["num_dq_stage"], config.strip_slots),
        "ab": LEAST["num_ab_stage"],
        "lora": 1 if lora else 0,
        "c": 1,
    }
    wishes = [
        ("lora", MOST_LORA_STAGES if lora else 0),
        ("dq", 4),
        ("ab", MOST_AB_STAGES),
        ("dq", MOST_STAGES),
    ]
    foot = footprint(config, problem_class, arch)
    return fill_rings(config, foot, least, wishes, share_of_smem(config.ctas_per_sm, arch))
