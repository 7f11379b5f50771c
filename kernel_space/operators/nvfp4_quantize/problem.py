"""QuantizeProblem: the shape and dtypes of one quantization of activations.

``act, ascales = nvfp4(x / smooth)``, ``lora_act_in = x @ lora_down``; x ``[M, K]``, lora_down ``[K, R]``
"""

from __future__ import annotations

import dataclasses

from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem, option, size

X_DTYPES = ("fp16", "bf16", "fp32")
HALF_DTYPES = ("fp16", "bf16")  # that the tensor core multiplies
K_MULTIPLE = 32  # a row of act (4 bits an element) is a multiple of 16 bytes
MAX_M, MAX_K = 2**31 - 128, 2**31 - 64  # rounded up to whole blocks of scales they are int32 too
MAX_R, R_MULTIPLE = 512, 16  # as svdquant_gemm takes them


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizeProblem(Problem, operator="nvfp4_quantize", example="4352,3840,128"):
    """M, K and R in elements. Prints as it parses: ``M,K,R``.

    M and K are run-time arguments. R = 0: there is no ``lora_down``, and no output ``lora_act_in``. ``smooth=none``:
    nothing is divided, and the pointer is not read. Raises ``InputError`` on construction when a size or an option is
    outside of the contract.
    """

    m: int = size(batch=True, most=MAX_M)
    k: int = size(most=MAX_K, multiple=K_MULTIPLE)
    r: int = size(least=0, most=MAX_R, multiple=R_MULTIPLE, compiled=True, zero="no LoRA-down")
    x_dtype: str = option(*X_DTYPES)
    smooth: str = option("fp32", "none")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.r and self.x_dtype not in HALF_DTYPES:
            raise InputError(
                f"x_dtype must be {' or '.join(HALF_DTYPES)} with R > 0, the dtype of lora_down; got {self.x_dtype} "
                f"with R={self.r}; use R=0 or cast x"
            )
