"""What models see that look at the ``weight`` of a linear before they call it: its shape, dtype and device, no numbers.

``torch.nn.TransformerEncoderLayer`` asks whether a fused path may take the weight itself, T5 casts x to the weight's
dtype. Neither may compute with a weight that is 4-bit codes and a branch; whoever tries is told so.
"""

from __future__ import annotations

from typing import Any

import torch

from kernel_space.core.errors import InputError

_LOOKS = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


class QuantizedWeight(torch.Tensor):
    """``[N, K]`` without memory. torch sees a tensor with functions of its own, so fused paths leave it alone."""

    @staticmethod
    def __new__(
        cls: type[QuantizedWeight], n: int, k: int, dtype: torch.dtype, device: torch.device
    ) -> QuantizedWeight:
        return torch.Tensor._make_wrapper_subclass(cls, (n, k), dtype=dtype, device=device)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Nothing of its own; that there is one is what fused paths ask."""
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub declares no class method
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in _LOOKS:
            return args[0]
        raise InputError(
            f"the weight of a SVDQuantLinear has shape, dtype and device, but no numbers to compute with ({func}): "
            f"call the layer"
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch's stub has no name
        return f"QuantizedWeight(shape={list(self.shape)}, dtype={self.dtype}, device={self.device})"
