"""Activations to NVFP4 as an operator. Its outputs are compared to the bit (docs/kernel_quantize.md)."""

from __future__ import annotations

from kernel_space.core.operator import Deferred, Operator, Work
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem
from kernel_space.operators.nvfp4_quantize.ragged import ragged
from kernel_space.operators.nvfp4_quantize.signature import SIGNATURE

_PACKAGE = "kernel_space.operators.nvfp4_quantize"
_CHUNK_BYTES = 64  # per element of a chunk of the oracle: float64 temporaries of 2^24 elements at most


def work(problem: QuantizeProblem) -> Work:
    """Of each element a quotient by smooth, its part in the largest of a block, a quotient by the scale."""
    quotients = 1 if problem.smooth == "fp32" else 0
    return Work(operations={"fp32": (2 + quotients) * problem.m * problem.k})


def check_bytes(problem: QuantizeProblem) -> int:
    """Of the oracle's chunks, and the expected outputs beside them."""
    elements = problem.m * problem.k
    return _CHUNK_BYTES * min(elements, 1 << 24) + 2 * elements


OPERATOR = Operator(
    name=QuantizeProblem.operator,
    formula="act, ascales = nvfp4(fp32(x) / smooth)",
    problem=QuantizeProblem,
    signature=SIGNATURE,
    kernels=("rows",),
    inputs=Deferred(f"{_PACKAGE}.operands:make_inputs"),
    check=Deferred(f"{_PACKAGE}.operands:check_outputs"),
    work=work,
    sources=("gaussian", "patterns"),
    ragged=ragged,
    check_bytes=check_bytes,
)
