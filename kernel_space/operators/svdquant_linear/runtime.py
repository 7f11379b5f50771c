"""``svdquant_linear`` for the run time: which problem tensors are, kernels of larger ranks, and the torch reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from kernel_space.core.errors import InputError
from kernel_space.core.stand_in import StandIn
from kernel_space.numerics.blocked import blocked_scale_bytes
from kernel_space.numerics.tensors import require_matrix, require_tensor
from kernel_space.operators.nvfp4_quantize import runtime as quantize
from kernel_space.operators.nvfp4_quantize.packing import packed_shape
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem
from kernel_space.operators.svdquant_gemm import runtime as gemm
from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES
from kernel_space.operators.svdquant_gemm.problem import MAX_R, GemmProblem
from kernel_space.operators.svdquant_linear.problem import LinearProblem

OPTIONS = ("activation",)
STEADY = "wgt"
EARLY = True  # a layer is packed long before it is called
KEYS = ("x", "wgt")
WIDEST = {"r": (256, MAX_R)}
_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}

Tensors = Mapping[str, torch.Tensor]


def problem_of(tensors: Tensors, *, activation: str = "none") -> LinearProblem:
    """The problem of these inputs; where x has no rows, that of one row. Raises ``InputError`` for tensors whose shapes
    and dtypes do not fit, the weights first.
    """
    x, wgt, lora_up = tensors["x"], tensors["wgt"], tensors["lora_up"]
    n = wgt.shape[0] if wgt.ndim else 0
    k = 2 * require_matrix(wgt, "wgt", (torch.uint8,), n)
    r = require_matrix(lora_up, "lora_up", tuple(_NAMES), n)
    problem = LinearProblem(m=1, k=k, n=n, r=r, dtype=_NAMES[lora_up.dtype], activation=activation)
    require_tensor(tensors["wscales"], "wscales", (torch.uint8,), (blocked_scale_bytes(n, k),))
    require_tensor(tensors["wcscale"], "wcscale", (torch.float32,), (n,))
    require_tensor(tensors["bias"], "bias", (torch.float32,), (n,))
    require_tensor(tensors["smooth"], "smooth", (torch.float32,), (k,))
    require_tensor(tensors["lora_down"], "lora_down", (lora_up.dtype,), packed_shape(k, r))
    if x.ndim != 2:
        raise InputError(f"x must be [M, {k}], got {list(x.shape)}")
    require_tensor(x, "x", (lora_up.dtype,), (x.shape[0], k))
    return dataclasses.replace(problem, m=max(x.shape[0], 1))


def stand_in(problem: LinearProblem, known: LinearProblem) -> StandIn | None:
    """A kernel of the rank of ``known`` for ``problem``, as for the GEMM; None for a smaller rank."""
    if known.r < problem.r:
        return None
    rank = known.r
    distance = gemm.rank_distance(_gemm_problem(problem), rank)
    if rank == problem.r:
        return StandIn(problem=problem, distance=distance)
    return StandIn(
        problem=dataclasses.replace(problem, r=rank),
        adapt=lambda tensors: padded(tensors, rank),
        distance=distance,
        note=f"R padded to {rank}",
    )


def padded(tensors: Tensors, rank: int) -> dict[str, torch.Tensor]:
    """Inputs of ``rank``, made anew, as nobody tells when a weight is written."""
    return {
        **tensors,
        "lora_down": pad_packed(tensors["lora_down"], rank),
        "lora_up": gemm.pad_rank(tensors["lora_up"], rank),
    }


def pad_packed(lora_down: torch.Tensor, rank: int) -> torch.Tensor:
    """Packed ``[chunks, R, 64]`` -> a new ``[chunks, rank, 64]`` with zeros for the columns that are new."""
    return torch.nn.functional.pad(lora_down, (0, 0, 0, rank - lora_down.shape[1]))


def reference(tensors: Tensors, problem: LinearProblem) -> dict[str, torch.Tensor]:
    """The layer in plain torch, by the references of its links."""
    part = QuantizeProblem(m=problem.m, k=problem.k, r=problem.r, x_dtype=problem.dtype)
    made = quantize.reference(tensors, part)
    return {**made, **gemm.reference({**tensors, **made}, _gemm_problem(problem))}


def _gemm_problem(problem: LinearProblem) -> GemmProblem:
    sizes = {name: getattr(problem, name) for name in ("m", "k", "n", "r")}
    return GemmProblem(
        **sizes, lora_dtype=problem.dtype, out_dtype=problem.dtype, activation=problem.activation
    )
