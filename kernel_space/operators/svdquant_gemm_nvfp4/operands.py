"""Random operands of a problem, and how codes and scales compare with what float64 says that they may be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from kernel_space.numerics.blocked import SF_BLOCK_BYTES, blocked_scale_bytes
from kernel_space.numerics.output_check import OutputCheck
from kernel_space.operators.svdquant_gemm.inputs import PackedInputs
from kernel_space.operators.svdquant_gemm.operands import CARD_CHUNK_ROWS, make_operands
from kernel_space.operators.svdquant_gemm.reference import CHUNK_ROWS, packed_bounds
from kernel_space.operators.svdquant_gemm_nvfp4.problem import QuantizedGemmProblem
from kernel_space.operators.svdquant_gemm_nvfp4.reference import Admissible, admissible
from kernel_space.operators.svdquant_gemm_nvfp4.signature import SIGNATURE

_GEMM_INPUTS = SIGNATURE.inputs[:-1]


def make_inputs(
    problem: QuantizedGemmProblem, seed: int, source: str = "gaussian", device: torch.device | str = "cpu"
) -> dict[str, torch.Tensor]:
    """Input tensors by name, the same for the same seed and kind of device: those of ``svdquant_gemm``, and next_smooth
    between 2^-3 and 2^3. Raises ``InputError`` for another source.
    """
    operands = make_operands(problem, seed, source=source, device=device)
    columns = problem.out_columns if problem.smooth == "fp32" else 0
    random = torch.Generator(device).manual_seed(seed + 1)
    smooth = torch.exp2(torch.rand(columns, generator=random, device=device) * 6 - 3)
    return {**{name: getattr(operands, name) for name in _GEMM_INPUTS}, "next_smooth": smooth}


def check_outputs(
    problem: QuantizedGemmProblem, tensors: Mapping[str, torch.Tensor], config: Any
) -> dict[str, OutputCheck]:
    """How many bytes are none that a correct kernel may write. ``tensors``: inputs and outputs by name;
    ``config.partial_sums``: parts of K that are summed apart.
    """
    inputs = PackedInputs(**{name: tensors[name] for name in _GEMM_INPUTS})
    rows = CARD_CHUNK_ROWS if inputs.act.is_cuda else CHUNK_ROWS
    bounds = packed_bounds(
        inputs,
        problem.out_dtype,
        split_k=config.partial_sums,
        activation=problem.activation,
        chunk_rows=rows,
    )
    smooth = tensors["next_smooth"] if problem.smooth == "fp32" else None
    checks: dict[str, OutputCheck] = {}
    for part, low, high in bounds:
        scales = tensors["next_ascales"][_scale_bytes(part, problem.out_columns)]
        allowed = admissible(low, high, smooth, scales)
        found = {
            "next_act": _codes(tensors["next_act"][part], allowed, part.start),
            "next_ascales": _scales(scales, allowed, part.start, problem.out_columns),
        }
        checks = {name: checks[name].merged(one) if name in checks else one for name, one in found.items()}
    return checks


def _scale_bytes(rows: slice, columns: int) -> slice:
    """Bytes of the scales of whole blocks of rows."""
    first = blocked_scale_bytes(rows.start, columns)
    return slice(first, first + blocked_scale_bytes(rows.stop - rows.start, columns))


def _codes(got: torch.Tensor, allowed: Admissible, first_row: int) -> OutputCheck:
    return _outside(got, allowed.wrong_codes(got), allowed.act, first_row)


def _scales(got: torch.Tensor, allowed: Admissible, first_row: int, columns: int) -> OutputCheck:
    wrong = allowed.wrong_scales(got).view(-1, SF_BLOCK_BYTES)
    first_block = blocked_scale_bytes(first_row, columns) // SF_BLOCK_BYTES
    return _outside(
        got.view(-1, SF_BLOCK_BYTES), wrong, allowed.ascales.view(-1, SF_BLOCK_BYTES), first_block
    )


def _outside(got: torch.Tensor, wrong: torch.Tensor, least: torch.Tensor, first_row: int) -> OutputCheck:
    """Of uint8 matrices. ``least``: the least byte that would be right, for the report."""
    bad = int(wrong.count_nonzero())
    row, column = divmod(int(wrong.view(-1).int().argmax()), got.shape[1])
    error = (got.int() - least.int()).abs().masked_fill_(~wrong, 0)
    return OutputCheck(
        elements=got.numel(),
        bad=bad,
        max_ratio=math.inf if bad else 0.0,
        worst_index=(first_row + row, column),
        got=float(got[row, column]),
        expected=float(least[row, column]),
        tolerance=0.0,
        max_error=float(error.max()),
    )
