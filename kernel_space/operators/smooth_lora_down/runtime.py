"""``smooth_lora_down`` for the run time: which problem tensors are, and the torch reference."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kernel_space.core.errors import InputError
from kernel_space.operators.nvfp4_quantize import runtime as quantize
from kernel_space.operators.nvfp4_quantize.packing import unpack_lora_down
from kernel_space.operators.smooth_lora_down.problem import SmoothProblem
from kernel_space.operators.smooth_lora_down.reference import expected_xs

KEYS = ("x", "lora_down")

Tensors = Mapping[str, torch.Tensor]


def problem_of(tensors: Tensors) -> SmoothProblem:
    """The problem of these inputs; an empty ``smooth`` is none. Raises ``InputError`` for what does not fit."""
    x = tensors["x"]
    if x.ndim != 2 or x.dtype not in (torch.float16, torch.bfloat16):
        came = f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"
        raise InputError(f"x must be float16 or bfloat16 [M, K], got {came}")
    return SmoothProblem(**quantize.problem_of(tensors).record())  # type: ignore[arg-type]  # of the same fields


def reference(tensors: Tensors, problem: SmoothProblem) -> dict[str, torch.Tensor]:
    """The operator in plain torch: ``xs`` to the bit; LoRA-down in fp32, rounded once."""
    x = tensors["x"]
    return {
        "xs": expected_xs(x, tensors["smooth"] if problem.smooth == "fp32" else None),
        "lora_act_in": quantize.lora_down_of(x, unpack_lora_down(tensors["lora_down"], problem.k)),
    }
