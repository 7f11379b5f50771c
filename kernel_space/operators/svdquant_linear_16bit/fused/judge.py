"""How outputs of ``fused`` compare with float64: x as it is, times the kernel's own 16-bit weights, to the bit."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kernel_space.numerics.nvfp4 import NVFP4Tensor, dequantize_nvfp4, unblock_scales
from kernel_space.numerics.output_check import OutputCheck, check_equal
from kernel_space.operators.nvfp4_quantize.packing import unpack_lora_down
from kernel_space.operators.nvfp4_quantize.reference import check_lora
from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES
from kernel_space.operators.svdquant_gemm.operands import CARD_CHUNK_ROWS
from kernel_space.operators.svdquant_gemm.reference import CHUNK_ROWS, check_dense
from kernel_space.operators.svdquant_linear_16bit.one_launch import OneLaunch
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem


def judge(
    problem: HalfLinearProblem, tensors: Mapping[str, torch.Tensor], config: OneLaunch
) -> dict[str, OutputCheck]:
    """``tensors``: inputs and outputs by name. y is judged by the lora_act_in that was written, as in a chain."""
    x, lora_act_in = tensors["x"], tensors["lora_act_in"]
    rows = CARD_CHUNK_ROWS if x.is_cuda else CHUNK_ROWS
    weights = smooth_weights(problem, tensors)
    check = check_dense(
        tensors["y"],
        x,
        weights,
        torch.zeros((1, 1), device=x.device),
        (tensors["wcscale"], tensors["bias"]),
        lora=(lora_act_in, tensors["lora_up"]) if problem.r else None,
        split_k=config.partial_sums,
        activation=problem.activation,
        chunk_rows=rows,
    )
    if not problem.r:
        return {"lora_act_in": check_equal(lora_act_in, lora_act_in), "y": check}
    return {"lora_act_in": _lora(problem, tensors, config, rows), "y": check}


def smooth_weights(problem: HalfLinearProblem, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """fp32 ``[N, K]``: weights times 1 / smooth in 16 bits, rounded to 16 bits. Codes times scales have six significant
    bits and 1 / smooth has eight, so the product in fp32 is exact.
    """
    half = TORCH_DTYPES[problem.dtype]
    scales = unblock_scales(tensors["wscales"], problem.n, problem.k)
    weights = dequantize_nvfp4(NVFP4Tensor(codes=tensors["wgt"], scales=scales))
    inverse = tensors["smooth"].reciprocal().to(half).float()
    return (weights.float() * inverse).to(half).float()


def _lora(
    problem: HalfLinearProblem, tensors: Mapping[str, torch.Tensor], config: OneLaunch, rows: int
) -> OutputCheck:
    x, got = tensors["x"], tensors["lora_act_in"]
    down = unpack_lora_down(tensors["lora_down"], problem.k)
    found: OutputCheck | None = None
    for start in range(0, problem.m, rows):
        part = slice(start, start + rows)
        check = check_lora(got[part], x[part], down, parts=config.sums_along_k, first_row=start)
        found = check if found is None else found.merged(check)
    assert found is not None  # M >= 1
    return found
