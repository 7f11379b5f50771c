"""Checks of the operator's tensors, done once for all weights that look alike and once per shape.

Nothing is remembered of a tensor itself, only of what it looks like, which every call compares: ``.data = ...``, a
change of dtype, sizes, strides or device of a known tensor are seen. What a call checks besides is what such facts do
not tell: alignment, and that there is memory at all.
"""

from __future__ import annotations

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.blocked import blocked_scale_bytes
from kernel_space.numerics.tensors import require_matrix, require_tensor
from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.runtime.choice.remembered import Recent
from tuner.runtime.load.trampoline import ALIGN

MAX_RECORDS = 1024  # kinds of weights, not layers
WEIGHTS = ("wgt", "wscales", "lora_up", "wcscale", "bias")
_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
_HALF = tuple(TORCH_DTYPES.values())

Weights = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class WeightRecord:
    """What some layers' weights look like, checked. ``device``: index of the card, -1 for the CPU."""

    __slots__ = ("device", "k", "lora_dtype", "n", "r")

    def __init__(self, weights: Weights) -> None:
        wgt, wscales, lora_up, wcscale, bias = weights
        n = wgt.shape[0]
        self.n = n
        self.k = 2 * require_matrix(wgt, "wgt", (torch.uint8,), n)
        self.r = require_matrix(lora_up, "lora_up", _HALF, n)
        self.lora_dtype = lora_up.dtype
        GemmProblem(m=1, k=self.k, n=n, r=self.r)  # raises for illegal sizes
        require_tensor(wscales, "wscales", (torch.uint8,), (blocked_scale_bytes(n, self.k),))
        require_tensor(wcscale, "wcscale", (torch.float32,), (n,))
        require_tensor(bias, "bias", (torch.float32,), (n,))
        self.device = wgt.get_device()
        for name, tensor in zip(WEIGHTS, weights, strict=True):
            require_launchable(tensor, name, wgt.device)

    def problem(self, m: int, out_dtype: torch.dtype) -> GemmProblem:
        if out_dtype not in _NAMES:
            raise InputError(f"y must be float16 or bfloat16, got {str(out_dtype).removeprefix('torch.')}")
        return GemmProblem(
            m=m, k=self.k, n=self.n, r=self.r, lora_dtype=_NAMES[self.lora_dtype], out_dtype=_NAMES[out_dtype]
        )

    def check_activations(self, act: torch.Tensor, ascales: torch.Tensor, lora_act_in: torch.Tensor) -> None:
        """Raises ``InputError`` for a shape or dtype that does not fit these weights."""
        m = act.shape[0] if act.ndim == 2 else 0
        require_tensor(act, "act", (torch.uint8,), (m, self.k // 2))
        require_tensor(ascales, "ascales", (torch.uint8,), (blocked_scale_bytes(m, self.k),))
        require_tensor(lora_act_in, "lora_act_in", (self.lora_dtype,), (m, self.r))


_records: Recent[tuple, WeightRecord] = Recent(MAX_RECORDS)


def record_of(weights: Weights) -> WeightRecord:
    """The record of weights that look like these; they are checked if there is none. Raises ``InputError``."""
    facts = tuple([(one.dtype, one.device, one.shape, one.stride()) for one in weights])
    record = _records.get(facts)
    if record is None:
        record = WeightRecord(weights)
        _records.put(facts, record)
    return record


def require_no_grad(what: str, **tensors: torch.Tensor | None) -> None:
    """Raises ``InputError`` if gradients are recorded and one of ``tensors`` wants one."""
    if not torch.is_grad_enabled():
        return
    for name, tensor in tensors.items():
        if tensor is not None and tensor.requires_grad:
            raise InputError(
                f"{what} has no backward pass but {name} requires grad; call it under torch.no_grad() or "
                f"torch.inference_mode(), or give {name}.detach()"
            )


def require_launchable(tensor: torch.Tensor, name: str, device: torch.device) -> None:
    """Raises ``InputError`` unless ``tensor`` is contiguous, aligned and on ``device``, where it has memory."""
    if tensor.device != device:
        raise InputError(f"{name} must be on {device} like the other operands, got {tensor.device}")
    if not tensor.is_contiguous():
        raise InputError(
            f"{name} must be contiguous, got strides {tuple(tensor.stride())}; call .contiguous()"
        )
    require_memory(tensor, name)
    if tensor.data_ptr() % ALIGN:
        raise InputError(f"{name} must start at a multiple of {ALIGN} bytes; call .clone()")


def require_memory(tensor: torch.Tensor, name: str) -> None:
    """Raises ``InputError`` for a tensor whose storage is gone: resized to nothing, or of the meta device."""
    if tensor.numel() and not tensor.data_ptr():
        raise InputError(f"{name} has no memory: its storage was released; bring it back before the call")
