"""Layers of ModelOpt's ``NVFP4_SVD``, and of its NVFP4 without a branch: row-major, x * pre_quant_scale feeds both.

    y = weight_scale_2 (S((x pre_quant_scale) / g) @ W.T) g + ((x pre_quant_scale) @ lora_a.T) @ lora_b.T + bias

``g`` is ``input_scale``, a second level of the activation that was calibrated; 1 where there is none. It goes into the
smoothing and into alpha, where it is the same to the last bit but for one rounding.
"""

from __future__ import annotations

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.tensors import FLOAT_DTYPES
from tuner.layers.checkpoints.group import Group
from tuner.layers.checkpoints.parts import Parts


def read(group: Group) -> Parts:
    """Raises ``InputError`` for tensors that do not fit, with their names."""
    weight = group.take("weight", (torch.uint8,), (None, None))
    n, k = weight.shape[0], 2 * weight.shape[1]
    if k % 16:
        raise InputError(f"{group.names['weight']} must have K a multiple of 16, got K = {k}")
    wscales = group.take("weight_scale", (torch.float8_e4m3fn,), (n, k // 16))
    level = _positive(group, "weight_scale_2")
    second = _positive(group, "input_scale")
    scale = group.maybe("pre_quant_scale", FLOAT_DTYPES, (k,))
    scale = torch.ones(k, dtype=torch.float64) if scale is None else scale.double()
    if not (scale > 0).all():
        raise InputError(f"{group.names['pre_quant_scale']} must be positive")
    down, up = _branch(group, n, k, scale)
    bias = group.maybe("bias", FLOAT_DTYPES, (n,))
    parts = Parts(
        wgt=weight.contiguous(),
        wscales=wscales,
        smooth=second / scale,
        lora_down=down,
        lora_up=up,
        wcscale=torch.ones(n),
        alpha=level * second,
        bias=torch.zeros(n) if bias is None else bias,
    )
    if second != 1.0:
        parts.notes.append("input_scale is in smooth and wcscale")
    return parts


def _positive(group: Group, own: str) -> float:
    found = group.number(own)
    if found is not None and found <= 0:
        raise InputError(f"{group.names[own]} must be positive, got {found}")
    return 1.0 if found is None else found


def _branch(group: Group, n: int, k: int, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(lora_down ``[K, R]`` of x itself, lora_up ``[N, R]``), float64."""
    names = ("svdquant_lora_a", "svdquant_lora_b")
    if not any(own in group for own in names):
        group.taken |= set(names)
        return torch.zeros(k, 0), torch.zeros(n, 0)
    a = group.take(names[0], FLOAT_DTYPES, (None, k))
    b = group.take(names[1], FLOAT_DTYPES, (n, a.shape[0]))
    return scale.unsqueeze(1) * a.double().T, b.double()
