"""The whole layer: a chain, activations to NVFP4 and to the low-rank branch, then the GEMM with them; on sm_90a also
one launch for up to a few hundred rows.
"""

from __future__ import annotations

from kernel_space.composite.link import Link
from kernel_space.composite.operator import composite
from kernel_space.operators.svdquant_linear.problem import LinearProblem

OPERATOR = composite(
    name=LinearProblem.operator,
    formula="y = activation(svdquant_gemm(nvfp4_quantize(x, smooth, lora_down), wgt, lora_up, wcscale, bias))",
    problem=LinearProblem,
    links=(
        Link(
            name="quantize",
            operator="nvfp4_quantize",
            fields={"m": "m", "k": "k", "r": "r", "x_dtype": "dtype"},
        ),
        Link(
            name="gemm",
            operator="svdquant_gemm",
            fields={
                **{name: name for name in ("m", "k", "n", "r", "activation")},
                "lora_dtype": "dtype",
                "out_dtype": "dtype",
            },
        ),
    ),
    kernels=("sliced_nvfp4", "staged_nvfp4", "whole_nvfp4"),
    runtime="kernel_space.operators.svdquant_linear.runtime",
)
