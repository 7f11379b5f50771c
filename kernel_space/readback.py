"""Read the sizes of one slot of every ring from the layouts a kernel allocates; imports the DSL when called."""

from __future__ import annotations

from typing import Any

from kernel_space.config import KernelConfig
from kernel_space.dsl_env import mlir_for
from kernel_space.problem import ProblemClass


def read_footprint(one_slot: KernelConfig, problem_class: ProblemClass, arch_name: str) -> dict[str, Any]:
    """Fields of a ``budget.Footprint``: bytes of each named SMEM region with one slot a ring, TMEM columns.

    ``one_slot`` must have every stage count 1. ``arch_name`` is ``sm_100a`` or ``sm_103a``.
    """
    return with_layouts(one_slot, problem_class, arch_name, _sizes)


def with_layouts(config: KernelConfig, problem_class: ProblemClass, arch_name: str, read: Any) -> Any:
    """Build ``Layouts`` of a resolved config in an MLIR context of its own and return ``read(layouts)``."""
    with mlir_for(arch_name):
        from kernel_space.kernels.layouts_sm100a import Layouts

        return read(Layouts(config, problem_class))


def _sizes(layouts: Any) -> dict[str, Any]:
    return {
        "smem": tuple((region.name, int(region.bytes), region.ring) for region in layouts.allocations()),
        "acc_cols": int(layouts.acc_cols_each),
        "sfa_cols": int(layouts.sfa_cols),
        "sfb_cols": int(layouts.sfb_cols),
        "num_epi_subtiles": int(layouts.num_epi_subtiles),
    }
