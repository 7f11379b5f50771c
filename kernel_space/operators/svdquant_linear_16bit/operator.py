"""The whole layer without an FP4 tensor core: a chain, x smoothed and to the low-rank branch, then the GEMM; for few
rows one launch.
"""

from __future__ import annotations

from kernel_space.composite.link import Link
from kernel_space.composite.operator import composite
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem

OPERATOR = composite(
    name=HalfLinearProblem.operator,
    formula="y = activation(svdquant_gemm_16bit(smooth_lora_down(x, smooth, lora_down), wgt, lora_up, wcscale, bias))",
    problem=HalfLinearProblem,
    links=(
        Link(
            name="smooth",
            operator="smooth_lora_down",
            fields={"m": "m", "k": "k", "r": "r", "x_dtype": "dtype"},
        ),
        Link(
            name="gemm",
            operator="svdquant_gemm_16bit",
            fields={name: name for name in ("m", "k", "n", "r", "dtype", "activation")},
        ),
    ),
    kernels=("sliced", "whole", "fused", "staged", "merged"),
    runtime="kernel_space.operators.svdquant_linear_16bit.runtime",
)
