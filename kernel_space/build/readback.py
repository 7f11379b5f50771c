"""Read the sizes of one slot of every ring from the layouts a kernel allocates; imports the DSL when called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernel_space.build import footprint_store
from kernel_space.build.dsl_env import mlir_for
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.problem import ProblemClass
from kernel_space.core.registry import kernel_of


def footprint_fields(one_slot: KernelConfig, problem_class: ProblemClass, arch_name: str) -> dict[str, Any]:
    """Fields of the kernel's ``Footprint``: those kept on disk, or else read from the layouts now and kept.

    ``one_slot`` must have every stage count 1.
    """
    kernel = kernel_of(one_slot, problem_class)
    key = f"{arch_name} {problem_class} {one_slot}"
    fields = footprint_store.load(kernel, key)
    if fields is None:
        fields = with_layouts(one_slot, problem_class, arch_name, lambda layouts: layouts.footprint())
        footprint_store.save(kernel, key, fields)
    return {**fields, "smem": tuple(tuple(row) for row in fields["smem"])}


def with_layouts(
    config: KernelConfig, problem_class: ProblemClass, arch_name: str, read: Callable[[Any], Any]
) -> Any:
    """Build the layouts of a resolved config in an MLIR context of its own and return ``read(layouts)``."""
    with mlir_for(arch_name):
        kernel = kernel_of(config, problem_class)
        if kernel.layouts is None:
            raise InputError(f"{kernel.full_name} has a budget to be read from layouts, and says no layouts")
        return read(kernel.layouts(config, problem_class))
