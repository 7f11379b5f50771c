"""SMEM budget of a configuration of ``sm90a_ring``, and its stage solver."""

from __future__ import annotations

import functools
from typing import Any

from kernel_space.core.arch import Arch
from kernel_space.core.budget import Footprint
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.sm90a_parts.budget import (
    MOST_AB_STAGES,
    MOST_LORA_STAGES,
    WANTED_AB_STAGES,
    BudgetSm90a,
    fill_rings,
    share_of_smem,
)
from kernel_space.operators.svdquant_gemm.sm90a_ring.config import RingConfig

# Knobs that the size of a slot depends on; beside them, whether K is split.
SIZED_BY = ("tile_mnk", "consumer_warpgroups", "pingpong", "register_operand", "epi_tile_n")
WANTED_DQ_STAGES = 4  # two k-tiles of 128: one being multiplied, one being written


def layouts(config: RingConfig, problem_class: ProblemClass) -> Any:
    """What the kernel allocates; imports the DSL, needs an MLIR context."""
    from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import LayoutsSm90a

    return LayoutsSm90a(config, problem_class)


def footprint(config: RingConfig, problem_class: ProblemClass, arch: Arch) -> Footprint:
    """The footprint of a config's class; stage counts, raster and scheduling knobs do not enter it."""
    sized_by = tuple(getattr(config, name) for name in SIZED_BY)
    return _read_footprint(sized_by, 2 if config.split_k > 1 else 1, problem_class, arch.name)


@functools.cache
def _read_footprint(
    sized_by: tuple[Any, ...], split_k: int, problem_class: ProblemClass, arch_name: str
) -> Footprint:
    # Imported here: build_key and the stores behind it are not needed by those who only print budgets.
    from kernel_space.build.readback import footprint_fields

    stages: dict[str, Any] = dict.fromkeys(RingConfig.stage_names(), 1)
    one_slot = RingConfig(**dict(zip(SIZED_BY, sized_by, strict=True)), **stages, split_k=split_k)
    return Footprint(**footprint_fields(one_slot, problem_class, arch_name))


def budget(config: RingConfig, problem_class: ProblemClass, arch: Arch) -> BudgetSm90a:
    """Budget of a config whose stage counts are numbers; whether it fits is for the caller to see."""
    limit = share_of_smem(config.ctas_per_sm, arch)
    return BudgetSm90a(footprint(config, problem_class, arch), config, arch, limit)


def solve_stages(config: RingConfig, problem_class: ProblemClass, arch: Arch) -> RingConfig:
    """Replace every ``auto`` by a count that fits, in this order of preference.

    1. 2 packed slots, 2 dq slots, 1 slot of C and, with LoRA, 1 of its ring.
    2. A third packed slot, then up to 4 dq slots.
    3. A second LoRA slot.
    4. A slot of C for every 64 rows of a warpgroup, two where a row is staged in parts.
    5. Packed slots take what is left, up to 16.
    """
    wishes = [
        ("ab", WANTED_AB_STAGES),
        ("dq", WANTED_DQ_STAGES),
        ("lora", MOST_LORA_STAGES if problem_class.r else 0),
        ("c", max(config.row_blocks, 1 + (config.staged_columns < config.tile_mnk[1]))),
        ("ab", MOST_AB_STAGES),
    ]
    least = {"dq": 2, "ab": 2, "lora": 1 if problem_class.r else 0, "c": 1}
    foot = footprint(config, problem_class, arch)
    return fill_rings(config, foot, least, wishes, share_of_smem(config.ctas_per_sm, arch))
