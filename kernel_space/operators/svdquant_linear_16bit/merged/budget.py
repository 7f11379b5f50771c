"""SMEM budget of a configuration of ``merged``, whose kernels have an SM one after the other, and its stage solver."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from kernel_space.composite.budget import CompositeBudget
from kernel_space.core.arch import Arch
from kernel_space.core.budget import Budget, Footprint
from kernel_space.core.kernel import Room
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.partials import PARTIAL_BYTES
from kernel_space.operators.svdquant_gemm.sm90a_parts.budget import MOST_AB_STAGES, BudgetSm90a, fill_rings
from kernel_space.operators.svdquant_gemm.tiles import num_cta_tiles
from kernel_space.operators.svdquant_gemm.workspace import zeroed_bytes
from kernel_space.operators.svdquant_linear_16bit.merged.config import MergingConfig
from kernel_space.operators.svdquant_linear_16bit.merged.rules import LEAST_STAGES
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem

MERGE = "merge"  # the ring of the first kernel's rows, as ``layouts.py`` has it
WEIGHT_BYTES = 2


@dataclasses.dataclass(frozen=True)
class MergeBudget(Budget):
    """Of the first kernel, which has no rings to solve."""

    @property
    def slots(self) -> dict[str, int]:
        return {MERGE: 1}


def room(config: MergingConfig, problem: HalfLinearProblem) -> Room:
    """Flags and fp32 sums where ``stream_k`` deals tiles out; then merged weights ``[N, K]``."""
    sizes: Any = problem  # only sizes are read
    _, sums = config.sums_in_workspace(num_cta_tiles(config, sizes))
    rows, columns, _ = config.tile_mnk
    zeroed = zeroed_bytes(config, sizes)
    partials = sums * rows * columns * PARTIAL_BYTES
    return Room(size=zeroed + partials + problem.n * problem.k * WEIGHT_BYTES, zeroed=zeroed)


def layouts(config: MergingConfig, problem_class: ProblemClass) -> Any:
    """What both kernels allocate; imports the DSL, needs an MLIR context."""
    from kernel_space.operators.svdquant_linear_16bit.merged.layouts import MergedLayouts

    return MergedLayouts(config, problem_class)


def footprints(config: MergingConfig, problem_class: ProblemClass, arch: Arch) -> tuple[Footprint, Footprint]:
    """Of the first and of the second kernel of a config's class."""
    sized_by = tuple(getattr(config, name) for name in config.sized_by)
    kind: Any = type(config)  # classes can be hashed, which mypy does not see of dataclasses
    rows = _read_footprint(kind, sized_by, problem_class, arch.name).smem
    first, second = ([row for row in rows if (row[2] == MERGE) is wanted] for wanted in (True, False))
    return Footprint(smem=tuple(first)), Footprint(smem=tuple(second))


@functools.cache
def _read_footprint(
    config_class: type[MergingConfig], sized_by: tuple[Any, ...], problem_class: ProblemClass, arch_name: str
) -> Footprint:
    # Imported here: build_key and the stores behind it are not needed by those who only print budgets.
    from kernel_space.build.readback import footprint_fields

    one_slot = config_class(**dict(zip(config_class.sized_by, sized_by, strict=True)), num_ab_stage=1)
    return Footprint(**footprint_fields(one_slot, problem_class, arch_name))


def budget(config: MergingConfig, problem_class: ProblemClass, arch: Arch) -> CompositeBudget:
    """Budget of a config whose stage counts are numbers; whether it fits is for the caller to see."""
    merge, product = footprints(config, problem_class, arch)
    parts = (
        ("merge", MergeBudget(merge, config, arch)),
        ("product", BudgetSm90a(product, config, arch, arch.smem_capacity)),
    )
    return CompositeBudget(Footprint(smem=()), config, arch, parts)


def solve_stages(config: MergingConfig, problem_class: ProblemClass, arch: Arch) -> MergingConfig:
    """Replace ``num_ab_stage=auto`` by what fits."""
    _, product = footprints(config, problem_class, arch)
    least = {"ab": LEAST_STAGES, "c": 1}
    return fill_rings(config, product, least, [("ab", MOST_AB_STAGES)], arch.smem_capacity)
