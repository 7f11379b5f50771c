"""GemmProblem: the shape, dtypes and activation of one SVDQuant W4A4 linear layer.

``y[M,N] = f((scaled_mma(act[M,K], wgt[N,K]) + lora_act_in[M,R] @ lora_up[N,R].T) * wcscale[N] + bias[N])``

``f`` is the ``activation``. ``swiglu`` makes N/2 columns: of 16 columns in a row the first 8 are gates, the others what
they let through.
"""

from __future__ import annotations

import dataclasses

from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem, option, size

HALF_DTYPES = ("fp16", "bf16")
N_MULTIPLE = 8  # a row of y is a multiple of 16 bytes, which TMA needs
K_MULTIPLE = 32  # a row of act and wgt (4 bits an element) is a multiple of 16 bytes
R_MULTIPLE = 16  # K of one fp16/bf16 MMA instruction
MAX_R = 512
ACTIVATIONS = ("none", "gelu_tanh", "silu", "swiglu")
SWIGLU = "swiglu"
GATE_COLUMNS = 8  # gates in a row, and the columns after them that they are for


@dataclasses.dataclass(frozen=True, kw_only=True)
class GemmProblem(Problem, operator="svdquant_gemm", example="4352,3840,3072,128"):
    """M, N, K in elements and the LoRA rank R. Prints as it parses: ``M,K,N,R``.

    M, N and K are run-time arguments; the alignment of every operand row is 16 bytes for all legal problems. Raises
    ``InputError`` on construction when a size or dtype is outside the contract.
    """

    m: int = size(batch=True)
    k: int = size(multiple=K_MULTIPLE)
    n: int = size(multiple=N_MULTIPLE)
    r: int = size(least=0, most=MAX_R, multiple=R_MULTIPLE, compiled=True, zero="no LoRA")
    lora_dtype: str = option(*HALF_DTYPES)
    out_dtype: str = option(*HALF_DTYPES)
    activation: str = option(*ACTIVATIONS, unsaid=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_gates(self.n, self.activation)

    @property
    def out_columns(self) -> int:
        """Of y."""
        return self.n // 2 if self.activation == SWIGLU else self.n

    @property
    def n_multiple(self) -> int:
        """Of N."""
        return 2 * GATE_COLUMNS if self.activation == SWIGLU else N_MULTIPLE

    @property
    def flops(self) -> int:
        """Multiply-adds of both GEMMs, two operations each."""
        return 2 * self.m * self.n * (self.k + self.r)


def require_gates(n: int, activation: str) -> None:
    """Raise ``InputError`` where N columns are no whole groups of gates and what they let through."""
    if activation == SWIGLU and n % (2 * GATE_COLUMNS):
        near = n // (2 * GATE_COLUMNS) * 2 * GATE_COLUMNS
        use = f"{near} or {near + 16}" if near else "16"
        raise InputError(
            f"N must be a multiple of {2 * GATE_COLUMNS} with activation=swiglu, got {n}; use {use}"
        )
