"""``svdquant_gemm`` for the run time: which problem tensors are, kernels of larger ranks, and the torch reference.

A call whose rank R has no near kernel launches one of a larger rank, with zeros for what is missing. Zero columns of
lora_act_in and lora_up add nothing to the product: +0.0 terms in the kernel's accumulator. The copies and the larger
product cost time, so a padded kernel competes with those of the exact rank at a distance.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import torch

from kernel_space.core.stand_in import StandIn
from kernel_space.numerics.activation import activated
from kernel_space.numerics.blocked import blocked_scale_bytes
from kernel_space.numerics.matmul import as_is
from kernel_space.numerics.nvfp4 import NVFP4Tensor, dequantize_nvfp4, unblock_scales
from kernel_space.numerics.tensors import DTYPES, require_matrix, require_tensor
from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES
from kernel_space.operators.svdquant_gemm.problem import MAX_R, GemmProblem

OPTIONS = ("out_dtype", "activation")
STEADY = "wgt"
KEYS = ("act", "wgt")
WIDEST = {"r": (256, MAX_R)}

WORK = 3.0
"""Distance for each doubling of the work of a row of K and R, in doublings of M. A doubling of M between the problem
and the one that a config was tuned for costs a third of a doubling of time (median of 14 pairs of a row of
``results/h200`` and its config's time in a tune of the same layer at another M)."""
PADDING = 2.0
"""Distance for padding at all: an estimate of what two more small kernels in front of the launch cost."""
PADDING_US = 5.0
"""The same in microseconds, launches included: an estimate."""
_LORA_BYTES = 4  # of one element of R, over one of K: 16 bits against 4
_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
_HALF = tuple(TORCH_DTYPES.values())

Tensors = Mapping[str, torch.Tensor]


def problem_of(tensors: Tensors, *, out_dtype: str = "fp16", activation: str = "none") -> GemmProblem:
    """The problem of these inputs; where they have no rows, that of one row. Raises ``InputError`` for tensors whose
    shapes and dtypes do not fit, the weights first.
    """
    wgt, lora_up, act = tensors["wgt"], tensors["lora_up"], tensors["act"]
    n = wgt.shape[0]
    k = 2 * require_matrix(wgt, "wgt", (torch.uint8,), n)
    r = require_matrix(lora_up, "lora_up", _HALF, n)
    dtypes = {"lora_dtype": _NAMES[lora_up.dtype], "out_dtype": out_dtype}
    problem = GemmProblem(m=1, k=k, n=n, r=r, **dtypes, activation=activation)
    require_tensor(tensors["wscales"], "wscales", (torch.uint8,), (blocked_scale_bytes(n, k),))
    require_tensor(tensors["wcscale"], "wcscale", (torch.float32,), (n,))
    require_tensor(tensors["bias"], "bias", (torch.float32,), (n,))
    m = act.shape[0] if act.ndim == 2 else 0
    require_tensor(act, "act", (torch.uint8,), (m, k // 2))
    require_tensor(tensors["ascales"], "ascales", (torch.uint8,), (blocked_scale_bytes(m, k),))
    require_tensor(tensors["lora_act_in"], "lora_act_in", (lora_up.dtype,), (m, r))
    return dataclasses.replace(problem, m=max(m, 1))


# ------------------------------------------------------------------ kernels of larger ranks


def stand_in(problem: GemmProblem, known: GemmProblem) -> StandIn | None:
    """A kernel of the rank of ``known`` for ``problem``; None for a smaller rank."""
    if known.r < problem.r:
        return None
    distance = rank_distance(problem, known.r)
    if known.r == problem.r:
        return StandIn(problem=problem, distance=distance)
    rank = known.r
    return StandIn(
        problem=dataclasses.replace(problem, r=rank),
        adapt=lambda tensors: padded(tensors, rank),
        distance=distance,
        us=PADDING_US,
        note=f"R padded to {rank}",
    )


def rank_distance(problem: GemmProblem, rank: int) -> float:
    """What ``rank`` adds to a kernel's distance from ``problem``, up to what is the same for all ranks.

    Without the work of the exact rank: so the padded problem orders kernels of its rank and larger ones as the problem
    itself does, and both launch the same one.
    """
    work = WORK * math.log2(problem.k + _LORA_BYTES * rank)
    return work if rank == problem.r else PADDING + work


def padded(tensors: Tensors, rank: int) -> dict[str, torch.Tensor]:
    """Inputs of ``rank``, made anew, as nobody tells when lora_up is written; it first, because a kernel may read
    weights while the one before it still runs.
    """
    wider = {name: pad_rank(tensors[name], rank) for name in ("lora_up", "lora_act_in")}
    return {**tensors, **wider}


def pad_rank(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    """``[rows, R]`` -> a new ``[rows, rank]``, zeros behind."""
    return torch.nn.functional.pad(tensor, (0, rank - tensor.shape[1]))


# ------------------------------------------------------------------ without a card


def reference(tensors: Tensors, problem: GemmProblem) -> dict[str, torch.Tensor]:
    """The operator in plain torch, for machines without a supported card: right, and slow.

    Computes the packed contract (docs/operator.md): operands dequantized exactly to fp32, products and sums in fp32,
    one rounding to the output's dtype. On the device on which the tensors are.
    """
    sums = as_is(_decode(tensors["act"], tensors["ascales"]), _decode(tensors["wgt"], tensors["wscales"]).T)
    if problem.r:
        sums += as_is(tensors["lora_act_in"].float(), tensors["lora_up"].float().T)
    whole = activated(sums * tensors["wcscale"] + tensors["bias"], problem.activation)
    return {"y": whole.to(DTYPES[problem.out_dtype])}


def _decode(codes: torch.Tensor, blocked: torch.Tensor) -> torch.Tensor:
    rows, k = codes.shape[0], 2 * codes.shape[1]
    return dequantize_nvfp4(NVFP4Tensor(codes=codes, scales=unblock_scales(blocked, rows, k)))
