"""SmoothProblem: the shape and dtypes of one smoothing of activations that stay 16-bit.

``xs = quad_order(x / smooth)``, ``lora_act_in = x @ lora_down``; x ``[M, K]``, lora_down ``[K, R]``
"""

from __future__ import annotations

import dataclasses

from kernel_space.core.problem import option
from kernel_space.operators.nvfp4_quantize.problem import HALF_DTYPES, QuantizeProblem


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmoothProblem(QuantizeProblem, operator="smooth_lora_down", example="4352,3840,128"):
    """Sizes and options of ``nvfp4_quantize``, whose place this operator takes in a layer; but x has 16 bits always.

    M and K are run-time arguments. R = 0: there is no ``lora_down``, and no output ``lora_act_in``. ``smooth=none``:
    nothing is divided, and the pointer is not read. Raises ``InputError`` on construction when a size or an option is
    outside of the contract.
    """

    x_dtype: str = option(*HALF_DTYPES)
