"""SMEM budget of a configuration of ``wide``, and its stage solver."""

from __future__ import annotations

import functools
from typing import Any

from kernel_space.core.arch import Arch
from kernel_space.core.budget import Footprint
from kernel_space.core.kernel import Room
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.partials import PARTIAL_BYTES
from kernel_space.operators.svdquant_gemm.sm90a_parts.budget import (
    MOST_AB_STAGES,
    MOST_LORA_STAGES,
    RESERVED_PER_CTA,
    WANTED_AB_STAGES,
    BudgetSm90a,
    fill_rings,
)
from kernel_space.operators.svdquant_gemm.tiles import num_cta_tiles
from kernel_space.operators.svdquant_gemm.workspace import zeroed_bytes
from kernel_space.operators.svdquant_gemm_16bit.problem import HalfGemmProblem
from kernel_space.operators.svdquant_gemm_16bit.wide.config import WideConfig

SIZED_BY = ("tile_mnk", "consumer_warpgroups", "epi_tile_n")  # knobs that the size of a slot depends on
# Slots of xs, as ``sm90a_expand`` takes of what it expands: more were not faster there (H200).
MOST_STAGES, FEW_COLUMNS, MOST_NARROW_STAGES = 6, 128, {1: 10, 2: 8}
BESIDE = 48 * 1024  # bytes left to a CTA of the kernel before where registers leave it room


def room(config: WideConfig, problem: HalfGemmProblem) -> Room:
    """Counters or flags, then fp32 sums, where CTAs share a tile along K."""
    sizes: Any = problem  # only sizes are read, and both problems have the same
    tiles = num_cta_tiles(config, sizes)
    _, sums = config.sums_in_workspace(tiles)
    rows, columns, _ = config.tile_mnk
    zeroed = zeroed_bytes(config, sizes)
    return Room(size=zeroed + sums * rows * columns * PARTIAL_BYTES, zeroed=zeroed)


def layouts(config: WideConfig, problem_class: ProblemClass) -> Any:
    """What the kernel allocates; imports the DSL, needs an MLIR context."""
    from kernel_space.operators.svdquant_gemm_16bit.wide.layouts import WideLayouts

    return WideLayouts(config, problem_class)


def smem_limit(config: WideConfig, arch: Arch) -> int:
    """Bytes one CTA may take."""
    return arch.smem_capacity - (BESIDE + RESERVED_PER_CTA if config.shares_sm else 0)


def footprint(config: WideConfig, problem_class: ProblemClass, arch: Arch) -> Footprint:
    """The footprint of a config's class; stage counts, raster and scheduling knobs do not enter it."""
    sized_by = tuple(getattr(config, name) for name in SIZED_BY)
    return _read_footprint(sized_by, 2 if config.split_k > 1 else 1, problem_class, arch.name)


@functools.cache
def _read_footprint(
    sized_by: tuple[Any, ...], split_k: int, problem_class: ProblemClass, arch_name: str
) -> Footprint:
    # Imported here: build_key and the stores behind it are not needed by those who only print budgets.
    from kernel_space.build.readback import footprint_fields

    stages: dict[str, Any] = dict.fromkeys(WideConfig.stage_names(), 1)
    one_slot = WideConfig(**dict(zip(SIZED_BY, sized_by, strict=True)), **stages, split_k=split_k)
    return Footprint(**footprint_fields(one_slot, problem_class, arch_name))


def budget(config: WideConfig, problem_class: ProblemClass, arch: Arch) -> BudgetSm90a:
    """Budget of a config whose stage counts are numbers; whether it fits is for the caller to see."""
    return BudgetSm90a(footprint(config, problem_class, arch), config, arch, smem_limit(config, arch))


def solve_stages(config: WideConfig, problem_class: ProblemClass, arch: Arch) -> WideConfig:
    """Replace every ``auto`` by a count that fits, in this order of preference.

    1. 2 packed slots, 2 slots of xs and, with LoRA, 1 of its ring.
    2. A third packed slot, then a second LoRA slot.
    3. Up to 6 slots of xs, of up to 128 columns 8, with one consumer warpgroup 10.
    4. Packed slots take what is left, up to 16.
    """
    narrow = config.tile_mnk[1] <= FEW_COLUMNS
    most = MOST_NARROW_STAGES[config.consumer_warpgroups] if narrow else MOST_STAGES
    lora = problem_class.r > 0
    wishes = [
        ("ab", WANTED_AB_STAGES),
        ("lora", MOST_LORA_STAGES if lora else 0),
        ("dq", most),
        ("ab", MOST_AB_STAGES),
    ]
    least = {"dq": 2, "ab": 2, "lora": 1 if lora else 0, "c": 1}
    foot = footprint(config, problem_class, arch)
    return fill_rings(config, foot, least, wishes, smem_limit(config, arch))
