"""Random operands of a problem, in the layout the kernel takes.

Magnitudes are those of a layer: unit-variance activations and weights with rows up to four times larger or smaller,
a low-rank term and a bias of the size of the quantized product, column scales around 1 with both signs. So every
term is far above the tolerance in most elements, and scale factors differ between rows and along K. They are the few
in the middle of the range, though: ``source="scales"`` has all of them (``full_range.py``).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.blocked import SF_VEC_SIZE
from kernel_space.numerics.nvfp4 import NVFP4Tensor, block_scales, quantize_nvfp4
from kernel_space.operators.svdquant_gemm.full_range import full_range
from kernel_space.operators.svdquant_gemm.gemm_config import GemmConfig
from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES, PackedInputs
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.reference import (
    CHUNK_ROWS,
    OutputCheck,
    check_packed,
    packed_reference,
    packed_tolerance,
)
from kernel_space.operators.svdquant_gemm.signature import SIGNATURE

ARGUMENT_ORDER = (*SIGNATURE.inputs, *SIGNATURE.outputs)
SOURCES = ("gaussian", "codes", "scales")
CARD_CHUNK_ROWS = 2048  # of the oracle on a card: float64 [2048, 15360] is 250 MB
_RANDOM_ELEMENTS = 1 << 20  # generated and quantized at a time
_CARD_ELEMENTS = 1 << 24
_SCALE_BYTES = (0x28, 0x40)  # E4M3 from 2^-2 to 1.875
_CODES_RMS = 2.9  # root mean square of a uniformly random code: sqrt(68.5 / 8)
_CURVED = 3.0  # root mean square of what an activation gets
_SCALES_RMS = 0.9  # of a uniformly random byte of _SCALE_BYTES


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Operands(PackedInputs):
    """``PackedInputs`` of ``problem`` and the output ``y``: ``[M, N]`` in out_dtype, filled with NaN.

    All are contiguous tensors on one device. Padding rows and groups of the scale factors are zero.
    """

    problem: GemmProblem
    y: torch.Tensor

    def tensors(self) -> dict[str, torch.Tensor]:
        """Name -> tensor in the order of the kernel's arguments. With R = 0 the LoRA tensors are empty."""
        return {name: getattr(self, name) for name in ARGUMENT_ORDER}

    def reference(self, *, chunk_rows: int = CHUNK_ROWS) -> torch.Tensor:
        """float64 ``[M, N]``."""
        return packed_reference(self, activation=self.problem.activation, chunk_rows=chunk_rows)

    def tolerance(self, *, split_k: int = 1, chunk_rows: int = CHUNK_ROWS) -> torch.Tensor:
        """float64 ``[M, N]``."""
        problem = self.problem
        return packed_tolerance(
            self, problem.out_dtype, split_k=split_k, activation=problem.activation, chunk_rows=chunk_rows
        )

    def check(self, *, split_k: int = 1) -> OutputCheck:
        """How the present content of ``y`` compares with the reference."""
        return check_packed(self.y, self, split_k=split_k, activation=self.problem.activation)


def argument_bytes(problem: GemmProblem) -> dict[str, int]:
    """Bytes of each tensor in the order of the kernel's arguments."""
    return {name: spec.nbytes for name, spec in SIGNATURE.tensors(problem).items()}


def make_inputs(
    problem: GemmProblem, seed: int, source: str = "gaussian", device: torch.device | str = "cpu"
) -> dict[str, torch.Tensor]:
    """Input tensors by name: as ``make_operands``, without the output."""
    operands = make_operands(problem, seed, source=source, device=device)
    return {name: getattr(operands, name) for name in SIGNATURE.inputs}


def check_outputs(
    problem: GemmProblem, tensors: Mapping[str, torch.Tensor], config: GemmConfig
) -> dict[str, OutputCheck]:
    """How ``y`` compares with the float64 reference of the packed contract. ``tensors``: inputs and output by name."""
    inputs = PackedInputs(**{name: tensors[name] for name in SIGNATURE.inputs})
    rows = CARD_CHUNK_ROWS if inputs.act.is_cuda else CHUNK_ROWS
    check = check_packed(
        tensors["y"],
        inputs,
        split_k=config.partial_sums,
        activation=problem.activation,
        chunk_rows=rows,
    )
    return {"y": check}


def make_operands(
    problem: GemmProblem, seed: int, *, source: str = "gaussian", device: torch.device | str = "cpu"
) -> Operands:
    """Operands of ``problem`` on ``device``, the same for the same seed and kind of device.

    ``source="gaussian"`` quantizes Gaussian act and wgt with ``quantize_nvfp4``; ``"codes"`` draws uniformly random
    E2M1 codes and E4M3 scales from 2^-2 to 1.875, several times faster; ``"scales"`` has every scale factor, zero
    blocks and rows, and results that overflow. Raises ``InputError`` for another source.
    """
    if source not in SOURCES:
        raise InputError(f"source must be one of {', '.join(SOURCES)}, got {source!r}")
    random = torch.Generator(device).manual_seed(seed)
    fields = full_range(problem, random) if source == "scales" else _middle_range(problem, random, source)
    size = (problem.m, problem.out_columns)
    y = torch.full(size, math.nan, dtype=TORCH_DTYPES[problem.out_dtype], device=device)
    return Operands(problem=problem, y=y, **fields)


def _middle_range(problem: GemmProblem, random: torch.Generator, source: str) -> dict[str, torch.Tensor]:
    """Every field of ``PackedInputs``, of magnitudes as in a layer."""
    device = random.device
    act_row, wgt_row = _row_magnitudes(problem.m, random), _row_magnitudes(problem.n, random)
    if source == "gaussian":
        act, wgt = _gaussian(act_row, problem.k, random), _gaussian(wgt_row, problem.k, random)
        size = math.sqrt(problem.k)
    else:
        act, wgt = _random_codes(problem.m, problem.k, random), _random_codes(problem.n, problem.k, random)
        act_row, wgt_row = torch.ones_like(act_row), torch.ones_like(wgt_row)
        size = math.sqrt(problem.k) * (_CODES_RMS * _SCALES_RMS) ** 2
    lora = TORCH_DTYPES[problem.lora_dtype]
    lora_act = torch.randn(problem.m, problem.r, generator=random, device=device) * act_row
    lora_up = torch.randn(problem.n, problem.r, generator=random, device=device) * wgt_row
    wcscale = _column_scales(problem.n, random)
    if problem.activation != "none":
        # where activations are curved
        wcscale *= 2.0 ** round(math.log2(_CURVED / size))
    bias = torch.randn(problem.n, generator=random, device=device) * size * wgt_row.view(-1) * wcscale.abs()
    return {
        "act": act.codes,
        "ascales": block_scales(act.scales),
        "wgt": wgt.codes,
        "wscales": block_scales(wgt.scales),
        "lora_act_in": lora_act.to(lora),
        "lora_up": (lora_up * (size / math.sqrt(max(problem.r, 1)))).to(lora),
        "wcscale": wcscale,
        "bias": bias,
    }


def _row_magnitudes(rows: int, random: torch.Generator) -> torch.Tensor:
    """``[rows, 1]``, log-uniform between 1/4 and 4."""
    return torch.exp2(torch.rand(rows, 1, generator=random, device=random.device) * 4 - 2)


def _column_scales(n: int, random: torch.Generator) -> torch.Tensor:
    """fp32 ``[n]``: magnitudes from 1/2 to 2, either sign."""
    sign = torch.randint(0, 2, (n,), generator=random, device=random.device) * 2 - 1
    return torch.exp2(torch.rand(n, generator=random, device=random.device) * 2 - 1) * sign


def _gaussian(row_magnitude: torch.Tensor, k: int, random: torch.Generator) -> NVFP4Tensor:
    on_card = random.device.type != "cpu"
    step = max(1, (_CARD_ELEMENTS if on_card else _RANDOM_ELEMENTS) // k)
    parts = [
        quantize_nvfp4(torch.randn(len(rows), k, generator=random, device=random.device) * rows)
        for rows in row_magnitude.split(step)
    ]
    scales = torch.cat([part.scales.view(torch.uint8) for part in parts])
    return NVFP4Tensor(
        codes=torch.cat([part.codes for part in parts]), scales=scales.view(torch.float8_e4m3fn)
    )


def _random_codes(rows: int, k: int, random: torch.Generator) -> NVFP4Tensor:
    where: dict[str, Any] = {"dtype": torch.uint8, "generator": random, "device": random.device}
    codes = torch.randint(0, 256, (rows, k // 2), **where)
    low, high = _SCALE_BYTES
    scales = torch.randint(low, high, (rows, k // SF_VEC_SIZE), **where)
    return NVFP4Tensor(codes=codes, scales=scales.view(torch.float8_e4m3fn))
