"""Inputs of a problem, and how outputs compare with the oracle: codes and scales to the bit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.blocked import SF_BLOCK_BYTES, SF_ROWS, blocked_scale_bytes
from kernel_space.numerics.output_check import OutputCheck, check_equal
from kernel_space.numerics.tensors import DTYPES
from kernel_space.operators.nvfp4_quantize.packing import pack_lora_down, packed_shape, unpack_lora_down
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem
from kernel_space.operators.nvfp4_quantize.reference import check_lora, expected_outputs

SOURCES = ("gaussian", "patterns")
CHUNK_ELEMENTS = 1 << 24  # of the oracle at a time
_PATTERNS = {"fp16": torch.int16, "bf16": torch.int16, "fp32": torch.int32}


def make_inputs(
    problem: QuantizeProblem, seed: int, source: str = "gaussian", device: torch.device | str = "cpu"
) -> dict[str, torch.Tensor]:
    """x, smooth and packed lora_down of ``problem`` on ``device``, the same for the same seed and kind of device.

    ``source="gaussian"``: activations of a layer, rows up to four times larger or smaller. ``"patterns"``: any bits of
    the dtype, NaN and infinities too, in columns of 64 of which every other is of the size of the one beside it.
    smooth is between 2^-10 and 2^10; without it its tensor is empty, as lora_down is with R = 0.

    Raises ``InputError`` for another source.
    """
    if source not in SOURCES:
        raise InputError(f"source must be one of {', '.join(SOURCES)}, got {source!r}")
    random = torch.Generator(device).manual_seed(seed)
    fill = _gaussian if source == "gaussian" else _patterns
    columns = problem.k if problem.smooth == "fp32" else 0
    smooth = torch.exp2(torch.rand(columns, generator=random, device=device) * 20 - 10)
    x = fill(problem, random)
    return {"x": x, "smooth": smooth, "lora_down": _lora_down(problem, random)}


def _lora_down(problem: QuantizeProblem, random: torch.Generator) -> torch.Tensor:
    """Packed; results are of the size of x."""
    dtype, device = DTYPES[problem.x_dtype], random.device
    if not problem.r:
        return torch.empty(packed_shape(problem.k, 0), dtype=dtype, device=device)
    plain = torch.randn(problem.k, problem.r, generator=random, device=device) / math.sqrt(problem.k)
    return pack_lora_down(plain.to(dtype))


def _gaussian(problem: QuantizeProblem, random: torch.Generator) -> torch.Tensor:
    rows = torch.exp2(torch.rand(problem.m, 1, generator=random, device=random.device) * 4 - 2)
    x = torch.randn(problem.m, problem.k, generator=random, device=random.device)
    return x.mul_(rows).to(DTYPES[problem.x_dtype])


def _patterns(problem: QuantizeProblem, random: torch.Generator) -> torch.Tensor:
    """Where a block has any bits, mostly its largest number has a code that is not zero."""
    kind = _PATTERNS[problem.x_dtype]
    low, high = torch.iinfo(kind).min, torch.iinfo(kind).max
    shape = (problem.m, problem.k)
    bits = torch.randint(low, high + 1, shape, generator=random, device=random.device).to(kind)
    x = bits.view(DTYPES[problem.x_dtype])
    groups = torch.arange(problem.k, device=random.device) // 16
    similar = torch.randn(shape, generator=random, device=random.device).to(x.dtype)
    wild = (groups % 2 == 0).expand(shape)
    if problem.r:
        # Most rows stay as they are: one NaN is all there is to see of a row's LoRA-down.
        wild = wild & (torch.arange(problem.m, device=random.device) % 4 == 3)[:, None]
    return torch.where(wild, x, similar)


def check_outputs(
    problem: QuantizeProblem, tensors: Mapping[str, torch.Tensor], config: Any
) -> dict[str, OutputCheck]:
    """How each output compares with the oracle. ``tensors``: inputs and outputs by name.

    ``config.sums_along_k``: sums of which a result of ``lora_act_in`` is added up.
    """
    checks: dict[str, OutputCheck] = {}
    smooth = tensors["smooth"] if problem.smooth == "fp32" else None
    lora_down = unpack_lora_down(tensors["lora_down"], problem.k) if problem.r else None
    for rows, scales in _chunks(problem):
        expected = expected_outputs(tensors["x"][rows], smooth)
        act, ascales = tensors["act"][rows], tensors["ascales"][scales]
        found = {
            "act": _bytes(act, expected.act, expected.defined, rows.start),
            "ascales": _bytes(
                ascales.view(-1, SF_BLOCK_BYTES),
                expected.ascales.view(-1, SF_BLOCK_BYTES),
                None,
                scales.start // SF_BLOCK_BYTES,
            ),
        }
        if lora_down is not None:
            lora, parts = tensors["lora_act_in"][rows], config.sums_along_k
            found["lora_act_in"] = check_lora(
                lora, tensors["x"][rows], lora_down, parts=parts, first_row=rows.start
            )
        checks = {name: checks[name].merged(one) if name in checks else one for name, one in found.items()}
    return checks if problem.r else {**checks, "lora_act_in": check_equal(*[tensors["lora_act_in"]] * 2)}


def _chunks(problem: QuantizeProblem) -> Iterator[tuple[slice, slice]]:
    """Rows of x and bytes of the scales of them, whole blocks of scales at a time."""
    step = max(1, CHUNK_ELEMENTS // (problem.k * SF_ROWS)) * SF_ROWS
    for start in range(0, problem.m, step):
        stop = min(problem.m, start + step)
        first = blocked_scale_bytes(start, problem.k)
        yield slice(start, stop), slice(first, first + blocked_scale_bytes(stop - start, problem.k))


def _bytes(
    got: torch.Tensor, expected: torch.Tensor, defined: torch.Tensor | None, first_row: int
) -> OutputCheck:
    """Of uint8 matrices, of which the bytes count that are ``defined``: the first that differs, and how many."""
    differs = got != expected
    if defined is not None:
        differs &= defined
    bad = int(differs.count_nonzero())
    row, column = divmod(int(differs.view(-1).int().argmax()), got.shape[1])
    error = (got.int() - expected.int()).abs().masked_fill_(~differs, 0)
    return OutputCheck(
        elements=got.numel(),
        bad=bad,
        max_ratio=math.inf if bad else 0.0,
        worst_index=(first_row + row, column),
        got=float(got[row, column]),
        expected=float(expected[row, column]),
        tolerance=0.0,
        max_error=float(error.max()),
    )
