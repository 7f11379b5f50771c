"""HalfLinearProblem: the shape and dtype of one whole layer on 16-bit activations, x ``[M, K]`` to y ``[M, N]``."""

from __future__ import annotations

import dataclasses

from kernel_space.operators.svdquant_linear.problem import LinearProblem


@dataclasses.dataclass(frozen=True, kw_only=True)
class HalfLinearProblem(LinearProblem, operator="svdquant_linear_16bit", example="4352,3840,3072,128"):
    """M, K, N in elements and the LoRA rank R, as of ``svdquant_linear``. Prints as it parses: ``M,K,N,R``.

    ``dtype`` of x, y and the LoRA factors; ``activation`` as there. Raises ``InputError`` on construction when a size
    or the dtype is outside of the contract.
    """
