"""Activations smoothed and put in order, and their low-rank branch, as an operator (docs/kernel_smooth.md)."""

from __future__ import annotations

from kernel_space.core.operator import Deferred, Operator, Work
from kernel_space.operators.nvfp4_quantize.operator import check_bytes
from kernel_space.operators.nvfp4_quantize.ragged import ragged
from kernel_space.operators.smooth_lora_down.problem import SmoothProblem
from kernel_space.operators.smooth_lora_down.signature import SIGNATURE

_PACKAGE = "kernel_space.operators.smooth_lora_down"


def work(problem: SmoothProblem) -> Work:
    """Of each element a product with 1/smooth; of LoRA-down multiply-adds, two operations each."""
    elements = problem.m * problem.k
    operations: dict[str, float] = {"fp32": elements if problem.smooth == "fp32" else 0}
    if problem.r:
        operations[problem.x_dtype] = 2 * elements * problem.r
    return Work(operations=operations)


OPERATOR = Operator(
    name=SmoothProblem.operator,
    formula="xs = quad_order(x / smooth) in 16 bits; lora_act_in = x @ lora_down",
    problem=SmoothProblem,
    signature=SIGNATURE,
    kernels=("smooth_rows", "smooth_mma", "smooth_tma"),
    inputs=Deferred("kernel_space.operators.nvfp4_quantize.operands:make_inputs"),
    check=Deferred(f"{_PACKAGE}.operands:check_outputs"),
    work=work,
    sources=("gaussian", "patterns"),
    ragged=ragged,
    check_bytes=check_bytes,
    weights=("smooth", "lora_down"),
    runtime=f"{_PACKAGE}.runtime",
)
