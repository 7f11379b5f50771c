"""How outputs compare with the oracle: ``xs`` to the bit. Inputs are those of ``nvfp4_quantize``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch

from kernel_space.numerics.output_check import OutputCheck, check_equal
from kernel_space.operators.nvfp4_quantize.packing import unpack_lora_down
from kernel_space.operators.nvfp4_quantize.reference import check_lora
from kernel_space.operators.smooth_lora_down.problem import SmoothProblem
from kernel_space.operators.smooth_lora_down.reference import expected_xs

CHUNK_ELEMENTS = 1 << 24  # of the oracle at a time


def check_outputs(
    problem: SmoothProblem, tensors: Mapping[str, torch.Tensor], config: Any
) -> dict[str, OutputCheck]:
    """How each output compares with the oracle. ``tensors``: inputs and outputs by name.

    ``config.sums_along_k``: sums of which a result of ``lora_act_in`` is added up.
    """
    checks: dict[str, OutputCheck] = {}
    smooth = tensors["smooth"] if problem.smooth == "fp32" else None
    lora_down = unpack_lora_down(tensors["lora_down"], problem.k) if problem.r else None
    step = max(1, CHUNK_ELEMENTS // problem.k)
    for start in range(0, problem.m, step):
        rows = slice(start, start + step)
        x = tensors["x"][rows]
        found = {"xs": _check_xs(tensors["xs"][rows], expected_xs(x, smooth), smooth is None, start)}
        if lora_down is not None:
            got, parts = tensors["lora_act_in"][rows], config.sums_along_k
            found["lora_act_in"] = check_lora(got, x, lora_down, parts=parts, first_row=start)
        checks = {name: checks[name].merged(one) if name in checks else one for name, one in found.items()}
    return checks if problem.r else {**checks, "lora_act_in": check_equal(*[tensors["lora_act_in"]] * 2)}


def _check_xs(got: torch.Tensor, expected: torch.Tensor, is_moved: bool, first_row: int) -> OutputCheck:
    """To the bit, NaN too where elements are only moved; where they are multiplied any NaN is a NaN."""
    if not is_moved:
        got, expected = (tensor.masked_fill(tensor.isnan(), math.nan) for tensor in (got, expected))
    found = check_equal(got, expected)
    row, column = found.worst_index
    return dataclasses.replace(found, worst_index=(first_row + row, column))
