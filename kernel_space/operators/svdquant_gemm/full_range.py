"""Operands that hold every scale factor and every code, for checks: what Gaussian ones never meet.

Every E4M3 byte from 0x00 to 0x7E stands in act and in wgt: a group of 16 along K where the scales of act are
large has small ones in wgt, so that their products, and with them all blocks of a row, are of one size. Then an error
in any scale, however small that is, is far above the tolerance, and y needs no more range than it has. The bytes go
round in ``PERIOD`` groups; rows differ from one another by up to one step of the exponent and in the mantissa.

| also there | how |
|---|---|
| zero scales under codes that are not zero | byte 0x00 in its turn; whole rows |
| zero blocks, zeros of both signs | one block in 32; whole rows |
| results beyond the largest number, on either side of it | every eighth column: ``SATURATES`` |
| subnormal results (fp16) | every eighth column: ``SUBNORMAL`` |
"""

from __future__ import annotations

import math
from typing import Any

import torch

from kernel_space.numerics.blocked import SF_VEC_SIZE
from kernel_space.numerics.nvfp4 import E4M3_LARGEST_BYTE, NVFP4Tensor, block_scales
from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES
from kernel_space.operators.svdquant_gemm.problem import GemmProblem

EXPONENTS, MANTISSAS = 16, 8  # of a scale byte, whose sign is never set
PERIOD = EXPONENTS * MANTISSAS  # groups that hold every byte once in row 0
ZERO_ROWS, ZERO_BLOCKS = 1 / 16, 1 / 32
SIGNS = 0x88  # of the two codes of a byte
CODES_RMS = math.sqrt(68.5 / 8)  # of a uniformly random code
COLUMN_KINDS, SATURATES, SUBNORMAL = 8, 0, 1  # of a column: its number modulo COLUMN_KINDS
SIZE = 32.0  # of y in ordinary columns
BELOW_LARGEST = 1 - 2.0**-7  # of the largest number: the bias of a column that saturates
OVER_SIZE = 2.0**-5  # of the largest number: what comes on top of it
LARGEST_SCALE = 2.0**112  # of wcscale: kernels may hold it 2^14 times larger
SUBNORMAL_SIZE = 2.0**-17  # of fp16, whose subnormals go from 2^-24 to 2^-14


def full_range(problem: GemmProblem, random: torch.Generator) -> dict[str, torch.Tensor]:
    """Every field of ``PackedInputs`` for ``problem``, on the generator's device, the same for the same state of it."""
    exponents = _rounds(problem.k // SF_VEC_SIZE, random)
    act = _matrix(problem.m, exponents, random)
    wgt = _matrix(problem.n, EXPONENTS - 1 - exponents, random)
    size = _size(act.scales, wgt.scales)
    lora = TORCH_DTYPES[problem.lora_dtype]
    lora_act = _normal((problem.m, problem.r), random)
    lora_up = _normal((problem.n, problem.r), random) * (size / math.sqrt(max(problem.r, 1)))
    wcscale, bias = _columns(problem, size, random)
    return {
        "act": act.codes,
        "ascales": block_scales(act.scales),
        "wgt": wgt.codes,
        "wscales": block_scales(wgt.scales),
        "lora_act_in": lora_act.to(lora),
        "lora_up": lora_up.to(lora),
        "wcscale": wcscale,
        "bias": bias,
    }


def _rounds(groups: int, random: torch.Generator) -> torch.Tensor:
    """``[groups]``: every exponent once in each 16 groups, in an order drawn anew."""
    turns = [
        torch.randperm(EXPONENTS, generator=random, device=random.device) for _ in range(0, groups, EXPONENTS)
    ]
    return torch.cat(turns)[:groups]


def _matrix(rows: int, exponents: torch.Tensor, random: torch.Generator) -> NVFP4Tensor:
    """``[rows, k]``. Row 0 has the exponents as they are, each with every mantissa once in ``PERIOD`` groups."""
    groups = len(exponents)
    where: dict[str, Any] = {"generator": random, "device": random.device}
    turn = torch.arange(groups, device=random.device) // EXPONENTS
    first = torch.randint(MANTISSAS, (EXPONENTS,), **where)[exponents]
    mantissa = torch.randint(MANTISSAS, (rows, groups), **where)
    step = torch.randint(2, (rows, groups), **where) - torch.randint(2, (rows, groups), **where)
    mantissa[0], step[0] = 0, 0
    exponent = (exponents + step).clamp_(0, EXPONENTS - 1)
    scales = exponent * MANTISSAS + (mantissa + first + turn) % MANTISSAS
    scales = scales.clamp_(max=E4M3_LARGEST_BYTE).to(torch.uint8)
    codes = torch.randint(256, (rows, groups, SF_VEC_SIZE // 2), dtype=torch.uint8, **where)
    chance = torch.rand(rows, 1, **where)
    chance[0] = 1.0
    scales[chance[:, 0] < ZERO_ROWS / 2] = 0
    zeros = torch.rand(rows, groups, **where) < ZERO_BLOCKS
    zeros |= (chance >= ZERO_ROWS / 2) & (chance < ZERO_ROWS)
    codes[zeros] &= SIGNS
    return NVFP4Tensor(codes=codes.view(rows, -1), scales=scales.view(torch.float8_e4m3fn))


def _size(ascales: torch.Tensor, wscales: torch.Tensor) -> float:
    """Root mean square of the sum over K, from that of the scales of each group."""
    squares = [scales.float().square().mean(dim=0) for scales in (ascales, wscales)]
    return CODES_RMS**2 * math.sqrt(SF_VEC_SIZE * float(squares[0] @ squares[1]))


def _columns(problem: GemmProblem, size: float, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 ``[n]`` wcscale and bias, either sign: by the kind of each column, and up to a factor of two around that."""
    largest = torch.finfo(TORCH_DTYPES[problem.out_dtype]).max
    kind = torch.arange(problem.n, device=random.device) % COLUMN_KINDS
    wanted = torch.full((problem.n,), SIZE, dtype=torch.float64, device=random.device)
    wanted[kind == SATURATES] = min(largest * OVER_SIZE, LARGEST_SCALE / 2 * size)
    if problem.out_dtype == "fp16":  # of bf16 they are subnormal in fp32 too, which no kernel promises
        wanted[kind == SUBNORMAL] = SUBNORMAL_SIZE
    around = torch.rand(problem.n, generator=random, device=random.device) * 2 - 1
    sign = torch.randint(2, (2, problem.n), generator=random, device=random.device) * 2 - 1
    bias = _normal((problem.n,), random) * wanted
    bias = torch.where(kind == SATURATES, sign[1] * (largest * BELOW_LARGEST), bias)
    return (wanted / size * torch.exp2(around) * sign[0]).float(), bias.float()


def _normal(shape: tuple[int, ...], random: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=random, device=random.device)
