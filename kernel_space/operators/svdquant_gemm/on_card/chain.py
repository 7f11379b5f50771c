"""Launches in chains: y of one is act, ascales and lora_act_in of the next.

``wcscale`` of a launch that writes is 0, so that y is its bias: bytes that are legal scale factors, codes and halves.
With an activation they are so large that it leaves them as they are, and gates are for ones.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from kernel_space.core.on_card import Chain
from kernel_space.numerics.blocked import SF_VEC_SIZE
from kernel_space.numerics.nvfp4 import SF_GROUPS, SF_ROWS
from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES
from kernel_space.operators.svdquant_gemm.operands import make_inputs
from kernel_space.operators.svdquant_gemm.problem import GATE_COLUMNS, SWIGLU, GemmProblem

CHAINED = ("act", "ascales", "lora_act_in")  # what may come from the launch just before
BIASES = 3  # of launches that write: two in a row, and the one before them, differ
# Low and high bytes of a half: any scale factor; a normal number of moderate size in fp16 and bf16.
LOW_BYTES, HIGH_BYTES = (0x00, 0x7F), (0x38, 0x40)
ACTIVATED_HIGH_BYTES = {"fp16": (0x4C, 0x50), "bf16": (0x41, 0x43)}  # from 16 and from 8 on
READER_SCALE = (
    2.0**-8
)  # of wcscale: scale factors up to 448 are read, those of the other operands are around 1


def chain(problem: GemmProblem, seed: int, device: torch.device | str) -> Chain:
    """``Operator.chain``."""
    random = torch.Generator(device).manual_seed(seed)
    base = make_inputs(problem, seed, "codes", device)
    return Chain(
        output="y",
        shared=[name for name in CHAINED if base[name].nbytes and not _ragged(name, problem)],
        writers=[
            {**base, "wcscale": torch.zeros_like(base["wcscale"]), "bias": _bias(problem, random)}
            for _ in range(BIASES)
        ],
        reader={**base, "wcscale": base["wcscale"] * READER_SCALE},
        first=functools.partial(legal_bytes, random, high=_high_bytes(problem)),
        # rows that are padding come behind
        leading=frozenset({"ascales"} if problem.m < SF_ROWS else ()),
    )


def legal_bytes(random: torch.Generator, count: int, high: tuple[int, int] = HIGH_BYTES) -> torch.Tensor:
    """uint8 ``[count]``, an even number: every byte is a legal scale factor."""
    where: dict[str, Any] = {"dtype": torch.uint8, "generator": random, "device": random.device}
    halves = [torch.randint(*span, (count // 2,), **where) for span in (LOW_BYTES, high)]
    return torch.stack(halves, dim=1).view(-1)


def _high_bytes(problem: GemmProblem) -> tuple[int, int]:
    return HIGH_BYTES if problem.activation == "none" else ACTIVATED_HIGH_BYTES[problem.out_dtype]


def _bias(problem: GemmProblem, random: torch.Generator) -> torch.Tensor:
    """fp32 ``[n]`` that the output format holds exactly."""
    bias = legal_bytes(random, 2 * problem.n, _high_bytes(problem))
    values = bias.view(TORCH_DTYPES[problem.out_dtype]).float()
    if problem.activation == SWIGLU:
        values.view(-1, 2, GATE_COLUMNS)[:, 1] = 1.0
    return values


def _ragged(name: str, problem: GemmProblem) -> bool:
    """Whether its padding along K must stay zero."""
    return name == "ascales" and bool(problem.k % (SF_GROUPS * SF_VEC_SIZE))
