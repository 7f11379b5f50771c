"""LinearProblem: the shape and dtypes of one whole layer, x ``[M, K]`` to y ``[M, N]``."""

from __future__ import annotations

import dataclasses

from kernel_space.core.problem import Problem, option, size
from kernel_space.operators.nvfp4_quantize.problem import MAX_K, MAX_M
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
class LinearProblem(Problem, operator="svdquant_linear", example="4352,3840,3072,128"):
    """M, K, N in elements and the LoRA rank R, as of the GEMM in it. Prints as it parses: ``M,K,N,R``.

    ``dtype`` of x, y and the LoRA factors; ``activation`` as of the GEMM, with N/2 columns of y for swiglu. Raises
    ``InputError`` on construction when a size or the dtype is outside of the contract.
    """

    m: int = size(batch=True, most=MAX_M)
    k: int = size(most=MAX_K, multiple=K_MULTIPLE)
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
