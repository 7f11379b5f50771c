"""``SVDQuantMLP``: two quantized layers with an activation between them, which the first one's kernel may compute."""

from __future__ import annotations

import copy
from typing import Any, Self

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.nvfp4 import block_scales, unblock_scales
from kernel_space.operators.svdquant_gemm.problem import ACTIVATIONS, GATE_COLUMNS, SWIGLU, require_gates
from tuner.layers.autocast import autocast_dtype
from tuner.layers.linear import SVDQuantLinear
from tuner.layers.mlp_op import mlp
from tuner.layers.quantize import X_DTYPES


class SVDQuantMLP(torch.nn.Module):
    """``fc2(f(fc1(x)))``; inference only. ``activation`` f: ``gelu_tanh`` (GELU with tanh), ``silu``, ``none``, or
    ``swiglu``, ``silu(gate) * up`` with both in fc1: of 16 rows of its weight 8 gates, then the 8 that they are for, as
    ``interleave_gates`` puts them and ``from_linears`` does.

    Whether f is part of fc1's kernel is what is faster on the card by its table (``tuner.layers.fusion``), and whether
    that kernel quantizes for an fc2 without a low-rank branch (``tuner.layers.handover``). Raises ``InputError`` for
    layers that do not fit each other.
    """

    def __init__(self, fc1: SVDQuantLinear, fc2: SVDQuantLinear, activation: str) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise InputError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
        require_gates(fc1.out_features, activation)
        hidden = fc1.out_features // 2 if activation == SWIGLU else fc1.out_features
        if fc2.in_features != hidden:
            raise InputError(
                f"fc2 must take the {hidden} columns that fc1 makes with activation={activation}, it takes "
                f"{fc2.in_features}"
            )
        self.fc1, self.fc2, self.activation = fc1, fc2, activation

    @classmethod
    def from_linears(
        cls, fc1: torch.nn.Linear, fc2: torch.nn.Linear, activation: str, rank: int = 128, **options: Any
    ) -> Self:
        """Quantize both, with ``options`` of ``SVDQuantLinear.from_linear``. For ``swiglu`` the first half of fc1's
        rows are gates, as checkpoints with one ``gate_up_proj`` have them.
        """
        if activation == SWIGLU:
            require_gates(fc1.out_features, activation)
            fc1 = copy.deepcopy(fc1)
            order = interleaved(fc1.out_features, fc1.weight.device)
            for parameter in fc1.parameters():
                parameter.data = parameter.data[order]
        first, second = (SVDQuantLinear.from_linear(one, rank, **options) for one in (fc1, fc2))
        return cls(first, second, activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., K]`` float16, bfloat16 or float32 -> ``[..., N]`` in the same dtype, under autocast in autocast's."""
        if not self._may_hand_over(x):
            made: torch.Tensor = self.fc2(self.fc1.activated(x, self.activation))
            return made
        fc1, fc2 = self.fc1, self.fc2
        rows = x.reshape(-1, fc1.in_features).to(fc1.dtype).contiguous()
        asked = (fc1.activations, fc2.activations)
        offered = (fc1.offered_peaks(), fc2.offered_peaks())
        first, second = (None if peaks is None else peaks() for peaks in offered)
        y = mlp(rows, _operands(fc1), _operands(fc2), (first, second), asked, self.activation)
        return y.to(autocast_dtype(x) or x.dtype).view(*x.shape[:-1], y.shape[1])

    def _may_hand_over(self, x: torch.Tensor) -> bool:
        """fc2 has no branch, and y is rounded to no dtype but the layers' own."""
        fc1, fc2 = self.fc1, self.fc2
        if fc2.max_rank or fc1.dtype != fc2.dtype or fc1._is_replica:
            return False
        fits = x.ndim > 0 and x.shape[-1] == fc1.in_features and x.dtype in X_DTYPES
        return fits and (autocast_dtype(x) or x.dtype) in (fc1.dtype, torch.float32)

    def extra_repr(self) -> str:
        return f"activation={self.activation}"


def _operands(layer: SVDQuantLinear) -> tuple[torch.Tensor, ...]:
    """What ``mlp_op`` takes of a layer."""
    branch = (layer.lora_down_packed, layer.wgt, layer.wscales, layer.lora_up)
    return (layer.smooth, *branch, layer.wcscale, layer.bias)


def interleaved(rows: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """int64 ``[rows]``: where each row of the interleaved order stands in gates, then what they are for."""
    halves = torch.arange(rows, device=device).view(2, -1, GATE_COLUMNS)
    return halves.transpose(0, 1).reshape(-1)


def interleave_gates(layer: SVDQuantLinear) -> SVDQuantLinear:
    """A copy of ``layer``, whose first half of outputs are gates and whose second is what they are for, with both
    interleaved as ``swiglu`` takes them. Raises ``InputError`` for outputs that are no multiple of 16.
    """
    require_gates(layer.out_features, SWIGLU)
    made, order = copy.deepcopy(layer), interleaved(layer.out_features, layer.wgt.device)
    scales = unblock_scales(layer.wscales, layer.out_features, layer.in_features)
    made.wscales.copy_(block_scales(scales.view(torch.uint8)[order].view(scales.dtype)))
    for name in ("wgt", "lora_up", "wcscale", "bias"):
        made.get_buffer(name).copy_(layer.get_buffer(name)[order])
    made.refresh_peaks()
    return made
