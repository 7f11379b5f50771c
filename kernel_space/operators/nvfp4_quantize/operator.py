"""Activations to NVFP4 and to the low-rank branch as an operator (docs/kernel_quantize.md)."""

from __future__ import annotations

from kernel_space.core.operator import Deferred, Operator, Work
from kernel_space.numerics.blocked import SF_ROWS
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem
from kernel_space.operators.nvfp4_quantize.ragged import ragged
from kernel_space.operators.nvfp4_quantize.signature import SIGNATURE

_PACKAGE = "kernel_space.operators.nvfp4_quantize"
_CHUNK_BYTES = 64  # per element of a chunk of the oracle: float64 temporaries of 2^24 elements at most


def work(problem: QuantizeProblem) -> Work:
    """Of each element a product with 1/smooth, its part in the largest of a block, a product with 1/scale; of LoRA-down
    multiply-adds, two operations each.
    """
    products = 1 if problem.smooth == "fp32" else 0
    elements = problem.m * problem.k
    operations: dict[str, float] = {"fp32": (2 + products) * elements}
    if problem.r:
        operations[problem.x_dtype] = 2 * elements * problem.r
    return Work(operations=operations)


def check_bytes(problem: QuantizeProblem) -> int:
    """Of the oracle's chunks, and the expected outputs beside them; of LoRA-down in float64 both operands and some
    matrices of a chunk of rows.
    """
    elements = problem.m * problem.k
    chunk = min(elements, 1 << 24)
    lora = 8 * problem.r * (3 * problem.k + 16 * (chunk // problem.k + SF_ROWS))
    return _CHUNK_BYTES * chunk + 2 * elements + lora


OPERATOR = Operator(
    name=QuantizeProblem.operator,
    formula="act, ascales = nvfp4(fp32(x) / smooth); lora_act_in = x @ lora_down",
    problem=QuantizeProblem,
    signature=SIGNATURE,
    kernels=("rows", "lora_mma", "lora_tma", "lora_tcgen05"),
    inputs=Deferred(f"{_PACKAGE}.operands:make_inputs"),
    check=Deferred(f"{_PACKAGE}.operands:check_outputs"),
    work=work,
    sources=("gaussian", "patterns"),
    ragged=ragged,
    check_bytes=check_bytes,
    weights=("smooth", "lora_down"),
    runtime=f"{_PACKAGE}.runtime",
)
