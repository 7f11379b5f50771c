"""GemmProblem: the shape and dtypes of one SVDQuant W4A4 linear layer.

``y[M,N] = (scaled_mma(act[M,K], wgt[N,K]) + lora_act_in[M,R] @ lora_up[N,R].T) * wcscale[N] + bias[N]``
"""

from __future__ import annotations

import dataclasses
import re
from typing import Self

from kernel_space.core.errors import InputError

OP = "svdquant_gemm"
HALF_DTYPES = ("fp16", "bf16")
N_MULTIPLE = 8  # a row of y is a multiple of 16 bytes, which TMA needs
K_MULTIPLE = 32  # a row of act and wgt (4 bits an element) is a multiple of 16 bytes
R_MULTIPLE = 16  # K of one fp16/bf16 MMA instruction
MAX_R = 256
MAX_EXTENT = 2**31 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProblemClass:
    """What one compiled object is specialised for besides its config; M, N and K are run-time arguments.

    ``r`` is the LoRA rank, 0 for none. The alignment of every operand row is 16 bytes for all legal problems.
    """

    r: int
    lora_dtype: str = "fp16"
    out_dtype: str = "fp16"

    def __str__(self) -> str:
        return f"r={self.r} lora_dtype={self.lora_dtype} out_dtype={self.out_dtype}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GemmProblem:
    """M, N, K in elements and the LoRA rank R. Prints as it parses: ``M,K,N,R``.

    Raises ``InputError`` on construction when a size or dtype is outside the contract.
    """

    m: int
    k: int
    n: int
    r: int
    lora_dtype: str = "fp16"
    out_dtype: str = "fp16"

    def __post_init__(self) -> None:
        for name, size in (("M", self.m), ("K", self.k), ("N", self.n)):
            if not 1 <= size <= MAX_EXTENT:
                raise InputError(f"{name} must be between 1 and {MAX_EXTENT}, got {size}")
        _need_multiple("N", self.n, N_MULTIPLE)
        _need_multiple("K", self.k, K_MULTIPLE)
        if not 0 <= self.r <= MAX_R:
            raise InputError(f"R must be between 0 (no LoRA) and {MAX_R}, got {self.r}")
        _need_multiple("R", self.r, R_MULTIPLE)
        for name, dtype in (("lora_dtype", self.lora_dtype), ("out_dtype", self.out_dtype)):
            if dtype not in HALF_DTYPES:
                raise InputError(f"{name} must be one of {', '.join(HALF_DTYPES)}, got {dtype!r}")

    @classmethod
    def parse(cls, text: str, *, lora_dtype: str = "fp16", out_dtype: str = "fp16") -> Self:
        """``"4352,3840,3072,128"`` -> M=4352, K=3840, N=3072, R=128. Raises ``InputError``."""
        fields = [field.strip() for field in text.split(",")]
        if len(fields) != 4 or not all(re.fullmatch(r"[0-9]+", field) for field in fields):
            raise InputError(
                f"a shape must be four integers M,K,N,R, got {text!r}; for example 4352,3840,3072,128"
            )
        m, k, n, r = (int(field) for field in fields)
        return cls(m=m, k=k, n=n, r=r, lora_dtype=lora_dtype, out_dtype=out_dtype)

    @property
    def problem_class(self) -> ProblemClass:
        return ProblemClass(r=self.r, lora_dtype=self.lora_dtype, out_dtype=self.out_dtype)

    @property
    def flops(self) -> int:
        """Multiply-adds of both GEMMs, two operations each."""
        return 2 * self.m * self.n * (self.k + self.r)

    def __str__(self) -> str:
        return f"{self.m},{self.k},{self.n},{self.r}"


def _need_multiple(name: str, size: int, multiple: int) -> None:
    if size % multiple:
        below = size - size % multiple
        near = f"{below} or {below + multiple}" if below else f"{multiple}"
        raise InputError(f"{name} must be a multiple of {multiple}, got {size}; use {near}")
