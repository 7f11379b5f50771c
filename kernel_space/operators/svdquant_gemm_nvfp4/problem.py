"""QuantizedGemmProblem: a layer's GEMM whose y is quantized for the next layer, which alone reads it.

``next_act, next_ascales = nvfp4(y / next_smooth)`` with y as ``svdquant_gemm`` makes it, rounded to ``out_dtype``.

An operator of its own: the arguments of an operator are one list for all its objects, and those of ``svdquant_gemm``
are built, measured and kept.
"""

from __future__ import annotations

import dataclasses

from kernel_space.core.errors import InputError
from kernel_space.core.problem import option, size
from kernel_space.operators.svdquant_gemm.problem import K_MULTIPLE, SWIGLU, GemmProblem


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizedGemmProblem(GemmProblem, operator="svdquant_gemm_nvfp4", example="4352,3072,12288,128"):
    """M, K, N in elements and the LoRA rank R, as of ``svdquant_gemm``. Prints as it parses: ``M,K,N,R``.

    ``out_dtype``: what y is rounded to before it is quantized, so that it makes no difference which kernel quantizes
    it. ``smooth=none``: nothing is divided, and the pointer is not read. Columns of y are the next layer's K, so a
    multiple of 32. Raises ``InputError`` on construction when a size or an option is outside of the contract.
    """

    n: int = size(multiple=K_MULTIPLE)
    smooth: str = option("fp32", "none")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n % self.n_multiple:
            near = self.n // self.n_multiple * self.n_multiple
            use = f"{near} or {near + self.n_multiple}" if near else f"{self.n_multiple}"
            raise InputError(
                f"N must be a multiple of {self.n_multiple} with activation={self.activation} and output in NVFP4, got "
                f"{self.n}; use {use}"
            )

    @property
    def n_multiple(self) -> int:
        """Of N."""
        return 2 * K_MULTIPLE if self.activation == SWIGLU else K_MULTIPLE
