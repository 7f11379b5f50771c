"""QuantizeProblem: the shape and dtypes of one quantization of activations.

``act, ascales = nvfp4(fp32(x) / smooth)``, x ``[M, K]``
"""

from __future__ import annotations

import dataclasses

from kernel_space.core.problem import Problem, option, size

X_DTYPES = ("fp16", "bf16", "fp32")
K_MULTIPLE = 32  # a row of act (4 bits an element) is a multiple of 16 bytes
MAX_M, MAX_K = 2**31 - 128, 2**31 - 64  # rounded up to whole blocks of scales they are int32 too


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizeProblem(Problem, operator="nvfp4_quantize", example="4352,3840"):
    """M and K in elements. Prints as it parses: ``M,K``.

    M and K are run-time arguments. ``smooth=none``: nothing is divided, and the pointer is not read. Raises
    ``InputError`` on construction when a size or an option is outside of the contract.
    """

    m: int = size(batch=True, most=MAX_M)
    k: int = size(most=MAX_K, multiple=K_MULTIPLE)
    x_dtype: str = option(*X_DTYPES)
    smooth: str = option("fp32", "none")
