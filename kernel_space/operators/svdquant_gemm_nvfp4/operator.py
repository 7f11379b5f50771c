"""A layer's GEMM with NVFP4 output as an operator (docs/kernel_quantize.md)."""

from __future__ import annotations

from kernel_space.core.operator import Deferred, Operator, Work
from kernel_space.operators.svdquant_gemm import operator as gemm
from kernel_space.operators.svdquant_gemm.ragged import ragged
from kernel_space.operators.svdquant_gemm_nvfp4.problem import QuantizedGemmProblem
from kernel_space.operators.svdquant_gemm_nvfp4.signature import SIGNATURE

_PACKAGE = "kernel_space.operators.svdquant_gemm_nvfp4"


def work(problem: QuantizedGemmProblem) -> Work:
    """Of ``svdquant_gemm``; of each element of y besides a product with 1/smooth, its part in the largest of a block, a
    product with 1/scale.
    """
    products = 1 if problem.smooth == "fp32" else 0
    beside = (2 + products) * problem.m * problem.out_columns
    return Work(operations={**gemm.work(problem).operations, "fp32": beside})


OPERATOR = Operator(
    name=QuantizedGemmProblem.operator,
    formula="next_act, next_ascales = nvfp4(round16(svdquant_gemm(...)) / next_smooth)",
    problem=QuantizedGemmProblem,
    signature=SIGNATURE,
    kernels=("sm100a",),
    inputs=Deferred(f"{_PACKAGE}.operands:make_inputs"),
    check=Deferred(f"{_PACKAGE}.operands:check_outputs"),
    work=work,
    sources=("gaussian", "scales"),
    ragged=ragged,
    check_bytes=gemm.check_bytes,
    weights=("wgt", "wscales", "lora_up", "wcscale", "bias", "next_smooth"),
    runtime=f"{_PACKAGE}.runtime",
)
