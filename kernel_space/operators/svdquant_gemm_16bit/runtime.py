"""``svdquant_gemm_16bit`` for the run time: which problem tensors are, kernels of larger ranks, the torch reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from kernel_space.core.errors import InputError
from kernel_space.core.stand_in import StandIn
from kernel_space.numerics.activation import activated
from kernel_space.numerics.blocked import blocked_scale_bytes
from kernel_space.numerics.matmul import as_is
from kernel_space.numerics.nvfp4 import NVFP4Tensor, dequantize_nvfp4, unblock_scales
from kernel_space.numerics.quad_order import from_quad_order, ordered_columns
from kernel_space.numerics.tensors import DTYPES, require_matrix, require_tensor
from kernel_space.operators.svdquant_gemm import runtime as gemm
from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES
from kernel_space.operators.svdquant_gemm.problem import MAX_R, GemmProblem
from kernel_space.operators.svdquant_gemm_16bit.problem import HalfGemmProblem

OPTIONS = ("activation",)
STEADY = "wgt"
KEYS = ("xs", "wgt")
WIDEST = {"r": (256, MAX_R)}
_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}

Tensors = Mapping[str, torch.Tensor]


def problem_of(tensors: Tensors, *, activation: str = "none") -> HalfGemmProblem:
    """The problem of these inputs; where they have no rows, that of one row. Raises ``InputError`` for tensors whose
    shapes and dtypes do not fit, the weights first.
    """
    wgt, lora_up, xs = tensors["wgt"], tensors["lora_up"], tensors["xs"]
    n = wgt.shape[0] if wgt.ndim else 0
    k = 2 * require_matrix(wgt, "wgt", (torch.uint8,), n)
    r = require_matrix(lora_up, "lora_up", tuple(_NAMES), n)
    problem = HalfGemmProblem(m=1, k=k, n=n, r=r, dtype=_NAMES[lora_up.dtype], activation=activation)
    require_tensor(tensors["wscales"], "wscales", (torch.uint8,), (blocked_scale_bytes(n, k),))
    require_tensor(tensors["wcscale"], "wcscale", (torch.float32,), (n,))
    require_tensor(tensors["bias"], "bias", (torch.float32,), (n,))
    if xs.ndim != 2:
        raise InputError(f"xs must be [M, {ordered_columns(k)}], got {list(xs.shape)}")
    require_tensor(xs, "xs", (lora_up.dtype,), (xs.shape[0], ordered_columns(k)))
    require_tensor(tensors["lora_act_in"], "lora_act_in", (lora_up.dtype,), (xs.shape[0], r))
    return dataclasses.replace(problem, m=max(xs.shape[0], 1))


def stand_in(problem: HalfGemmProblem, known: HalfGemmProblem) -> StandIn | None:
    """A kernel of the rank of ``known`` for ``problem``, as for ``svdquant_gemm``; None for a smaller rank."""
    if known.r < problem.r:
        return None
    rank = known.r
    same = GemmProblem(m=problem.m, k=problem.k, n=problem.n, r=problem.r)
    distance = gemm.rank_distance(same, rank)
    if rank == problem.r:
        return StandIn(problem=problem, distance=distance)
    return StandIn(
        problem=dataclasses.replace(problem, r=rank),
        adapt=lambda tensors: gemm.padded(tensors, rank),
        distance=distance,
        us=gemm.PADDING_US,
        note=f"R padded to {rank}",
    )


def reference(tensors: Tensors, problem: HalfGemmProblem) -> dict[str, torch.Tensor]:
    """The operator in plain torch: weights dequantized to fp32, products and sums in fp32, one rounding."""
    scales = unblock_scales(tensors["wscales"], problem.n, problem.k)
    wgt = dequantize_nvfp4(NVFP4Tensor(codes=tensors["wgt"], scales=scales))
    sums = as_is(from_quad_order(tensors["xs"], problem.k).float(), wgt.T)
    if problem.r:
        sums += as_is(tensors["lora_act_in"].float(), tensors["lora_up"].float().T)
    whole = activated(sums * tensors["wcscale"] + tensors["bias"], problem.activation)
    return {"y": whole.to(DTYPES[problem.dtype])}
