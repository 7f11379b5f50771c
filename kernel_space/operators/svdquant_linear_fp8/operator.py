"""The whole layer on FP8 activations as an operator, for chips with an FP8 tensor core and none of FP4.

The packed weights of ``svdquant_linear``; docs/kernel_fp8.md.
"""

from __future__ import annotations

from kernel_space.core.operator import Deferred, Operator, Work
from kernel_space.operators.svdquant_gemm.operator import check_bytes
from kernel_space.operators.svdquant_linear_fp8.problem import Fp8LinearProblem
from kernel_space.operators.svdquant_linear_fp8.ragged import ragged
from kernel_space.operators.svdquant_linear_fp8.signature import SIGNATURE

_PACKAGE = "kernel_space.operators.svdquant_linear_fp8"


def work(problem: Fp8LinearProblem) -> Work:
    """Multiply-adds, two operations each: of x and the merged weights in FP8, of the low-rank branch in 16 bits."""
    return Work(
        operations={
            "fp8": 2 * problem.m * problem.n * problem.k,
            problem.dtype: 2 * problem.n * problem.k * problem.r,
        }
    )


OPERATOR = Operator(
    name=Fp8LinearProblem.operator,
    formula="y = activation((fp8(x) @ fp8(wgt / smooth + lora_up @ lora_down.T).T) * wcscale + bias)",
    problem=Fp8LinearProblem,
    signature=SIGNATURE,
    kernels=("merged_fp8",),
    inputs=Deferred(f"{_PACKAGE}.operands:make_inputs"),
    check=Deferred(f"{_PACKAGE}.reference:check_outputs"),
    work=work,
    sources=("gaussian", "scales"),
    ragged=ragged,
    check_bytes=check_bytes,
    weights=("smooth", "lora_down", "wgt", "wscales", "lora_up", "wcscale", "bias", "wpeak"),
    runtime=f"{_PACKAGE}.runtime",
)
