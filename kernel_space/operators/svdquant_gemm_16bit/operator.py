"""The GEMM of an SVDQuant layer on 16-bit activations as an operator, for chips without an FP4 tensor core.

The same packed weights as ``svdquant_gemm``; docs/kernel_16bit.md.
"""

from __future__ import annotations

from kernel_space.core.operator import Deferred, Operator, Work
from kernel_space.operators.svdquant_gemm.operator import check_bytes
from kernel_space.operators.svdquant_gemm_16bit.problem import HalfGemmProblem
from kernel_space.operators.svdquant_gemm_16bit.ragged import ragged
from kernel_space.operators.svdquant_gemm_16bit.signature import SIGNATURE

_PACKAGE = "kernel_space.operators.svdquant_gemm_16bit"


def work(problem: HalfGemmProblem) -> Work:
    """Multiply-adds of both GEMMs, two operations each; all on the 16-bit tensor core."""
    return Work(operations={problem.dtype: 2 * problem.m * problem.n * (problem.k + problem.r)})


OPERATOR = Operator(
    name=HalfGemmProblem.operator,
    formula="y = activation((xs @ wgt.T + lora_act_in @ lora_up.T) * wcscale + bias)",
    problem=HalfGemmProblem,
    signature=SIGNATURE,
    kernels=("wide", "narrow"),
    inputs=Deferred(f"{_PACKAGE}.operands:make_inputs"),
    check=Deferred(f"{_PACKAGE}.operands:check_outputs"),
    work=work,
    sources=("gaussian", "scales"),
    ragged=ragged,
    check_bytes=check_bytes,
    weights=("wgt", "wscales", "lora_up", "wcscale", "bias"),
    runtime=f"{_PACKAGE}.runtime",
)
