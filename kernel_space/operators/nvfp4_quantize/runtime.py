"""``nvfp4_quantize`` for the run time: which problem tensors are, and the torch reference."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.matmul import as_is
from kernel_space.numerics.tensors import DTYPES, require_tensor
from kernel_space.operators.nvfp4_quantize.packing import packed_shape, unpack_lora_down
from kernel_space.operators.nvfp4_quantize.problem import X_DTYPES, QuantizeProblem
from kernel_space.operators.nvfp4_quantize.reference import expected_outputs

KEYS = ("x", "lora_down")
_NAMES = {DTYPES[name]: name for name in X_DTYPES}

Tensors = Mapping[str, torch.Tensor]


def problem_of(tensors: Tensors) -> QuantizeProblem:
    """The problem of these inputs; an empty ``smooth`` is none. Raises ``InputError`` for what does not fit."""
    x, smooth, lora_down = tensors["x"], tensors["smooth"], tensors["lora_down"]
    if x.ndim != 2 or x.dtype not in _NAMES:
        came = f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"
        raise InputError(f"x must be float16, bfloat16 or float32 [M, K], got {came}")
    if lora_down.ndim != 3:
        raise InputError(f"lora_down must be packed, [ceil(K / 64), R, 64], got {list(lora_down.shape)}")
    m, k = x.shape
    r = lora_down.shape[1]
    named = "fp32" if smooth.numel() else "none"
    problem = QuantizeProblem(m=max(m, 1), k=k, r=r, x_dtype=_NAMES[x.dtype], smooth=named)
    require_tensor(smooth, "smooth", (torch.float32,), (k if smooth.numel() else 0,))
    require_tensor(lora_down, "lora_down", (x.dtype,), packed_shape(k, r))
    return problem


def reference(tensors: Tensors, problem: QuantizeProblem) -> dict[str, torch.Tensor]:
    """The operator in plain torch: codes and scales to the bit; LoRA-down in fp32, rounded once."""
    x = tensors["x"]
    expected = expected_outputs(x, tensors["smooth"] if problem.smooth == "fp32" else None)
    return {
        "act": expected.act,
        "ascales": expected.ascales,
        "lora_act_in": lora_down_of(x, unpack_lora_down(tensors["lora_down"], problem.k)),
    }


def lora_down_of(x: torch.Tensor, lora_down: torch.Tensor) -> torch.Tensor:
    """``x @ lora_down`` accumulated in fp32, in the dtype of both, whatever autocast says.

    CPU builds of torch have no fast fp16 matmul, and some accumulate it in fp16.
    """
    return as_is(x.float(), lora_down.float()).to(lora_down.dtype)
