"""How y of ``merged`` compares with float64: x as it is, times weights merged in float64 and rounded once."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kernel_space.numerics.nvfp4 import NVFP4Tensor, dequantize_nvfp4, unblock_scales
from kernel_space.numerics.output_check import OutputCheck, output_ulp
from kernel_space.operators.nvfp4_quantize.packing import unpack_lora_down
from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES
from kernel_space.operators.svdquant_gemm.operands import CARD_CHUNK_ROWS
from kernel_space.operators.svdquant_gemm.reference import (
    ACC_ROUNDOFF,
    CHUNK_ROWS,
    FP32_ROUNDOFF,
    check_dense,
)
from kernel_space.operators.svdquant_linear_16bit.merged.config import MergedConfig
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem

MMA_K = 16  # products of one wgmma
ROWS_AT_ONCE = 512  # of weights in float64
ROUNDINGS = 3  # of fp32 in a merged weight beside its sum over R: 1 / smooth, a product with it, a sum


def judge(
    problem: HalfLinearProblem, tensors: Mapping[str, torch.Tensor], config: MergedConfig
) -> dict[str, OutputCheck]:
    """``tensors``: inputs and outputs by name; ``config.partial_sums``: parts of K that are summed apart."""
    x = tensors["x"]
    merged, doubt = merged_weights(problem, tensors)
    check = check_dense(
        tensors["y"],
        x,
        merged,
        doubt,
        (tensors["wcscale"], tensors["bias"]),
        split_k=config.partial_sums,
        activation=problem.activation,
        chunk_rows=CARD_CHUNK_ROWS if x.is_cuda else CHUNK_ROWS,
    )
    return {"y": check}


def merged_weights(
    problem: HalfLinearProblem, tensors: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 ``[N, K]``: merged weights as 16 bits have them, and by how much a kernel's own may differ: a unit in the
    last place where what fp32 adds to the number in float64 decides its rounding, else nothing.
    """
    inputs = _Inputs(problem, tensors)
    parts = [inputs.rows(slice(at, at + ROWS_AT_ONCE)) for at in range(0, problem.n, ROWS_AT_ONCE)]
    merged, doubt = (torch.cat(part) for part in zip(*parts, strict=True))
    return merged, doubt


class _Inputs:
    """Decoded, in float64 where that is small."""

    def __init__(self, problem: HalfLinearProblem, tensors: Mapping[str, torch.Tensor]) -> None:
        scales = unblock_scales(tensors["wscales"], problem.n, problem.k)
        self.wgt = dequantize_nvfp4(NVFP4Tensor(codes=tensors["wgt"], scales=scales))
        self.inverse = 1 / tensors["smooth"].double()
        self.half = TORCH_DTYPES[problem.dtype]
        self.r = problem.r
        if problem.r:
            self.up = tensors["lora_up"].double()
            self.down = unpack_lora_down(tensors["lora_down"], problem.k).double()

    def rows(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """(merged weights, doubt) of some rows."""
        value = self.wgt[rows].double() * self.inverse
        error = value.abs() * (ROUNDINGS * FP32_ROUNDOFF)
        if self.r:
            value += self.up[rows] @ self.down.T
            # Each wgmma rounds its sum once; what is added to it is as large at most.
            steps = self.r // MMA_K + ROUNDINGS
            error += (self.up[rows].abs() @ self.down.abs().T) * (steps * ACC_ROUNDOFF)
        low, high = (value - error).to(self.half), (value + error).to(self.half)
        doubt = torch.where(low == high, 0.0, output_ulp(value, self.half))
        return value.to(self.half).float(), doubt.float()
