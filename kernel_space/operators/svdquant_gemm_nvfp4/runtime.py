"""``svdquant_gemm_nvfp4`` for the run time: which problem tensors are, kernels of larger ranks, the torch reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from kernel_space.core.stand_in import StandIn
from kernel_space.numerics.tensors import require_tensor
from kernel_space.operators.nvfp4_quantize.reference import expected_outputs
from kernel_space.operators.svdquant_gemm import runtime as gemm
from kernel_space.operators.svdquant_gemm_nvfp4.problem import QuantizedGemmProblem

OPTIONS = gemm.OPTIONS
STEADY = gemm.STEADY
KEYS = gemm.KEYS
WIDEST = gemm.WIDEST

Tensors = Mapping[str, torch.Tensor]


def problem_of(
    tensors: Tensors, *, out_dtype: str = "fp16", activation: str = "none"
) -> QuantizedGemmProblem:
    """The problem of these inputs, as ``svdquant_gemm`` finds its own; an empty ``next_smooth`` is none. Raises
    ``InputError`` for what does not fit.
    """
    found = gemm.problem_of(tensors, out_dtype=out_dtype, activation=activation)
    smooth = tensors["next_smooth"]
    fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    problem = QuantizedGemmProblem(**fields, smooth="fp32" if smooth.numel() else "none")
    columns = problem.out_columns if smooth.numel() else 0
    require_tensor(smooth, "next_smooth", (torch.float32,), (columns,))
    return problem


def stand_in(problem: QuantizedGemmProblem, known: QuantizedGemmProblem) -> StandIn | None:
    """A kernel of the rank of ``known`` for ``problem``, as for ``svdquant_gemm``; None for a smaller rank."""
    return gemm.stand_in(problem, known)


def reference(tensors: Tensors, problem: QuantizedGemmProblem) -> dict[str, torch.Tensor]:
    """The operator in plain torch: y of ``svdquant_gemm``'s, quantized to the bit."""
    y = gemm.reference(tensors, problem)["y"]
    made = expected_outputs(y, tensors["next_smooth"] if problem.smooth == "fp32" else None)
    return {"next_act": made.act, "next_ascales": made.ascales}
