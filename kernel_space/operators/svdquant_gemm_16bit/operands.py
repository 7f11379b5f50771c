"""Random operands of a problem in the layout the kernel takes, and how y compares with float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kernel_space.numerics.nvfp4 import NVFP4Tensor, dequantize_nvfp4, unblock_scales
from kernel_space.numerics.output_check import OutputCheck
from kernel_space.numerics.quad_order import from_quad_order, to_quad_order
from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES
from kernel_space.operators.svdquant_gemm.operands import CARD_CHUNK_ROWS, make_operands
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.reference import CHUNK_ROWS, check_half
from kernel_space.operators.svdquant_gemm_16bit.problem import HalfGemmProblem
from kernel_space.operators.svdquant_gemm_16bit.signature import SIGNATURE

SPREAD = 1 / 16  # of x around what NVFP4 holds: so that all bits of its significands count


def make_inputs(
    problem: HalfGemmProblem, seed: int, source: str = "gaussian", device: torch.device | str = "cpu"
) -> dict[str, torch.Tensor]:
    """Input tensors by name, the same for the same seed and kind of device: those of ``svdquant_gemm``, with xs of the
    size of its dequantized activations. Raises ``InputError`` for another source.
    """
    same = GemmProblem(
        **problem.sizes, lora_dtype=problem.dtype, out_dtype=problem.dtype, activation=problem.activation
    )
    operands = make_operands(same, seed, source=source, device=device)
    act = _decode(operands.act, operands.ascales)
    random = torch.Generator(device).manual_seed(seed + 1)
    around = 1 + SPREAD * (torch.rand(act.shape, generator=random, device=device) - 0.5)
    xs = to_quad_order((act * around).to(TORCH_DTYPES[problem.dtype]))
    return {name: xs if name == "xs" else getattr(operands, name) for name in SIGNATURE.inputs}


def check_outputs(
    problem: HalfGemmProblem, tensors: Mapping[str, torch.Tensor], config: Any
) -> dict[str, OutputCheck]:
    """How ``y`` compares with float64. ``tensors``: inputs and output by name; ``config.partial_sums``: parts of K that
    are summed apart.
    """
    x = from_quad_order(tensors["xs"], problem.k)
    wgt, wscales = tensors["wgt"], tensors["wscales"]
    codes = NVFP4Tensor(codes=wgt, scales=unblock_scales(wscales, problem.n, problem.k))
    check = check_half(
        tensors["y"],
        x,
        codes,
        (tensors["lora_act_in"], tensors["lora_up"]),
        (tensors["wcscale"], tensors["bias"]),
        split_k=config.partial_sums,
        activation=problem.activation,
        chunk_rows=CARD_CHUNK_ROWS if x.is_cuda else CHUNK_ROWS,
    )
    return {"y": check}


def _decode(codes: torch.Tensor, blocked: torch.Tensor) -> torch.Tensor:
    rows, k = codes.shape[0], 2 * codes.shape[1]
    return dequantize_nvfp4(NVFP4Tensor(codes=codes, scales=unblock_scales(blocked, rows, k)))
