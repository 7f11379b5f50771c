"""Layouts of the kernel ``wide``: those of ``sm90a_expand``'s GEMM, with one 16-bit dtype for everything."""

import dataclasses
from typing import Any

import cutlass.utils.hopper_helpers as sm90_utils
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.parts.allocations import ACC_DTYPE, HALF_DTYPES, Allocation
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import MMA_ROWS
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import LayoutsSm90a
from kernel_space.operators.svdquant_gemm_16bit.wide.config import WideConfig


@dataclasses.dataclass(frozen=True)
class _Class:
    """What ``LayoutsSm90a`` asks of a problem's class."""

    r: int
    lora_dtype: str
    out_dtype: str
    activation: str


class WideLayouts(LayoutsSm90a):
    """Tiled MMAs and staged SMEM layouts of a resolved config."""

    def __init__(self, config: WideConfig, problem_class: ProblemClass):
        self.half = HALF_DTYPES[problem_class.dtype]
        self.is_bf16 = problem_class.dtype == "bf16"
        plain: Any = _Class(
            r=problem_class.r,
            lora_dtype=problem_class.dtype,
            out_dtype=problem_class.dtype,
            activation=problem_class.activation,
        )
        super().__init__(config, plain)

    def _make_mma(self) -> None:
        def make(source: Any) -> Any:
            return sm90_utils.make_trivial_tiled_mma(
                self.half,
                self.half,
                OperandMajorMode.K,
                OperandMajorMode.K,
                ACC_DTYPE,
                (1, 1, 1),
                (MMA_ROWS, self.columns),
                source,
            )

        self.tiled_mma = make(warpgroup.OperandSource.RMEM)
        self.lora_mma = make(warpgroup.OperandSource.SMEM)
        self.acc_shape = self.tiled_mma.partition_shape_C((MMA_ROWS, self.columns))  # of one row block

    def allocations(self) -> list[Allocation]:
        """Shared memory in the order in which the kernel lays it out."""
        regions = super().allocations()
        return [
            dataclasses.replace(region, dtype=self.half) if region.name == "dequantized" else region
            for region in regions
        ]
