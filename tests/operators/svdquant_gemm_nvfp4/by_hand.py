"""The operator an element at a time: y in float64 from exact codes, then an independent packer."""

from __future__ import annotations

import functools
import math

import torch

from kernel_space.operators.svdquant_gemm_nvfp4.problem import QuantizedGemmProblem
from tests.numerics.nvfp4_oracle import blocked_offset, e2m1_value, e4m3_value, fp32, quantize_activations

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
Tensors = dict[str, torch.Tensor]


def decoded(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """float64 ``[rows, K]``; both are lists of bytes."""
    rows, k = codes.shape[0], 2 * codes.shape[1]
    packed, blocked = codes.tolist(), scales.tolist()
    number = functools.cache(lambda code, byte: float(e2m1_value(code) * e4m3_value(byte)))
    return torch.tensor(
        [
            [
                number(
                    packed[row][column // 2] >> 4 * (column % 2) & 15,
                    blocked[blocked_offset(row, column // 16, k // 16)],
                )
                for column in range(k)
            ]
            for row in range(rows)
        ],
        dtype=torch.float64,
    )


def activated(v: float, name: str) -> float:
    if name == "gelu_tanh":
        return 0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))
    return v if name == "none" else v / (1 + math.exp(-v))


def y_of(problem: QuantizedGemmProblem, tensors: Tensors) -> torch.Tensor:
    """float64 ``[M, columns of y]``."""
    act = decoded(tensors["act"], tensors["ascales"])
    sums = act @ decoded(tensors["wgt"], tensors["wscales"]).T
    sums += tensors["lora_act_in"].double() @ tensors["lora_up"].double().T
    whole = (sums * tensors["wcscale"].double() + tensors["bias"].double()).tolist()
    if problem.activation != "swiglu":
        return torch.tensor(
            [[activated(v, problem.activation) for v in row] for row in whole], dtype=torch.float64
        )
    columns = [16 * (j // 8) + j % 8 for j in range(problem.n // 2)]
    return torch.tensor(
        [[activated(row[j], "silu") * row[j + 8] for j in columns] for row in whole], dtype=torch.float64
    )


def quantized(y: torch.Tensor, smooth: torch.Tensor | None) -> Tensors:
    """Both outputs for y of 16 bits, finite."""
    m, n = y.shape
    inverse = [fp32(1 / one) for one in smooth.tolist()] if smooth is not None else [1.0] * n
    act = torch.zeros(m, n // 2, dtype=torch.uint8)
    scales = torch.zeros(-(-m // 128) * -(-n // 64) * 512, dtype=torch.uint8)
    for row, values in enumerate(y.tolist()):
        z = [fp32(a * b) for a, b in zip(values, inverse, strict=True)]
        for group in range(n // 16):
            codes, byte = quantize_activations(z[16 * group : 16 * group + 16])
            scales[blocked_offset(row, group, n // 16)] = byte
            for index, code in enumerate(codes):
                act[row, 8 * group + index // 2] |= code << 4 * (index % 2)
    return {"next_act": act, "next_ascales": scales}


def outputs(problem: QuantizedGemmProblem, inputs: Tensors) -> Tensors:
    y = y_of(problem, inputs).to(DTYPES[problem.out_dtype])
    return quantized(y, inputs["next_smooth"] if problem.smooth == "fp32" else None)
