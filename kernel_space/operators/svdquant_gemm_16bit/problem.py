"""HalfGemmProblem: the shape and dtype of one SVDQuant layer's GEMM on 16-bit activations.

``y[M,N] = f((xs[M,K] @ wgt[N,K].T + lora_act_in[M,R] @ lora_up[N,R].T) * wcscale[N] + bias[N])``
"""

from __future__ import annotations

import dataclasses

from kernel_space.core.problem import Problem, option, size
from kernel_space.operators.svdquant_gemm.problem import (
    ACTIVATIONS,
    GATE_COLUMNS,
    HALF_DTYPES,
    K_MULTIPLE,
    MAX_R,
    N_MULTIPLE,
    R_MULTIPLE,
    SWIGLU,
    require_gates,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HalfGemmProblem(Problem, operator="svdquant_gemm_16bit", example="4352,3840,3072,128"):
    """M, N, K in elements and the LoRA rank R, as of ``svdquant_gemm``. Prints as it parses: ``M,K,N,R``.

    ``dtype`` of xs, the LoRA operands and y; ``activation`` as of ``svdquant_gemm``. Raises ``InputError`` on
    construction when a size or the dtype is outside of the contract.
    """

    m: int = size(batch=True)
    k: int = size(multiple=K_MULTIPLE)
    n: int = size(multiple=N_MULTIPLE)
    r: int = size(least=0, most=MAX_R, multiple=R_MULTIPLE, compiled=True, zero="no LoRA")
    dtype: str = option(*HALF_DTYPES)
    activation: str = option(*ACTIVATIONS, unsaid=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_gates(self.n, self.activation)

    @property
    def n_multiple(self) -> int:
        """Of N."""
        return 2 * GATE_COLUMNS if self.activation == SWIGLU else N_MULTIPLE

    @property
    def out_columns(self) -> int:
        """Of y."""
        return self.n // 2 if self.activation == SWIGLU else self.n
