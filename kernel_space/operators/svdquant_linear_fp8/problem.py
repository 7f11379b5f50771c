"""Fp8LinearProblem: the shape and dtype of one whole layer on FP8 activations, x ``[M, K]`` to y ``[M, N]``."""

from __future__ import annotations

import dataclasses

from kernel_space.operators.svdquant_gemm.problem import SWIGLU
from kernel_space.operators.svdquant_linear.problem import LinearProblem


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fp8LinearProblem(LinearProblem, operator="svdquant_linear_fp8", example="4352,3840,3072,128"):
    """M, K, N in elements and the LoRA rank R, as of ``svdquant_linear``. Prints as it parses: ``M,K,N,R``.

    ``dtype`` of x, y and the LoRA factors; ``activation`` as there. Raises ``InputError`` on construction when a size
    or the dtype is outside of the contract.
    """

    @property
    def out_columns(self) -> int:
        """Of y."""
        return self.n // 2 if self.activation == SWIGLU else self.n
