"""Shared memory of both kernels of ``merged_fp8``: what they allocate and what the budget reads back."""

from typing import Any

import cutlass
from cutlass import cute

from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.parts.allocations import Allocation
from kernel_space.operators.svdquant_linear_16bit.merged.layouts import (
    MERGE,
    MergedLayouts,
    MergeLayouts,
    ProductLayouts,
)
from kernel_space.operators.svdquant_linear_fp8.merged_fp8.config import MergedFp8Config

FP8 = cutlass.Float8E4M3FN
HELD = 4  # vectors of x that a thread holds, of as many rows at most


class ProductFp8Layouts(ProductLayouts):
    """Of the second kernel, whose operands are FP8."""

    def _operand_dtype(self, problem_class: ProblemClass) -> Any:
        return FP8


class MergeFp8Layouts(MergeLayouts):
    """Of the first kernel: merged weights are bytes; CTAs that quantize x have maxima of each warp."""

    def _merged_dtype(self) -> Any:
        return cutlass.Uint8

    def allocations(self) -> list[Allocation]:
        """Shared memory in the order in which the kernel lays it out."""
        maxima = cute.make_layout((HELD, self.warps, 2))
        return [*super().allocations(), Allocation("maxima", cutlass.Float32, maxima, MERGE, 16)]


class MergedFp8Layouts(MergedLayouts):
    """Of both kernels, for the budget."""

    def __init__(self, config: MergedFp8Config, problem_class: ProblemClass):
        self.product = ProductFp8Layouts(config, problem_class)
        self.merge = MergeFp8Layouts(config, problem_class)
