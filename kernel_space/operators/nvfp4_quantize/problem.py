"""QuantizeProblem: the shape and dtypes of one quantization of activations.

``act, ascales = nvfp4(fp32(x) / smooth)``, x ``[M, K]``
"""

from __future__ import annotations

import dataclasses
import re
from typing import Self

from kernel_space.core.errors import InputError

OP = "nvfp4_quantize"
X_DTYPES = ("fp16", "bf16", "fp32")
X_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
K_MULTIPLE = 32  # a row of act (4 bits an element) is a multiple of 16 bytes
MAX_M = 2**31 - 128  # rounded up to whole blocks of scales both are int32
MAX_K = 2**31 - 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizeClass:
    """What one compiled object is specialised for besides its config; M and K are run-time arguments.

    ``smooth`` false: nothing is divided and the pointer ``smooth`` is not read.
    """

    x_dtype: str = "fp16"
    smooth: bool = True

    def __str__(self) -> str:
        return f"x_dtype={self.x_dtype} smooth={str(self.smooth).lower()}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizeProblem:
    """M and K in elements. Prints as it parses: ``M,K``.

    Raises ``InputError`` on construction when a size or dtype is outside the contract.
    """

    m: int
    k: int
    x_dtype: str = "fp16"
    smooth: bool = True

    def __post_init__(self) -> None:
        for name, size, most in (("M", self.m, MAX_M), ("K", self.k, MAX_K)):
            if not 1 <= size <= most:
                raise InputError(f"{name} must be between 1 and {most}, got {size}")
        if self.k % K_MULTIPLE:
            below = self.k - self.k % K_MULTIPLE
            near = f"{below} or {below + K_MULTIPLE}" if below else f"{K_MULTIPLE}"
            raise InputError(f"K must be a multiple of {K_MULTIPLE}, got {self.k}; use {near}")
        if self.x_dtype not in X_DTYPES:
            raise InputError(f"x_dtype must be one of {', '.join(X_DTYPES)}, got {self.x_dtype!r}")

    @classmethod
    def parse(cls, text: str, *, x_dtype: str = "fp16", smooth: bool = True) -> Self:
        """``"4352,3840"`` -> M=4352, K=3840. Raises ``InputError``."""
        fields = [field.strip() for field in text.split(",")]
        if len(fields) != 2 or not all(re.fullmatch(r"[0-9]+", field) for field in fields):
            raise InputError(f"a shape must be two integers M,K, got {text!r}; for example 4352,3840")
        m, k = (int(field) for field in fields)
        return cls(m=m, k=k, x_dtype=x_dtype, smooth=smooth)

    @property
    def problem_class(self) -> QuantizeClass:
        return QuantizeClass(x_dtype=self.x_dtype, smooth=self.smooth)

    def __str__(self) -> str:
        return f"{self.m},{self.k}"
