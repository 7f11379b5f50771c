"""Checks of the operator's tensors, done once per set of weights and once per shape.

What is checked on every call is only what can change without the shape changing: device, contiguity, alignment.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch

from kernel_space.errors import InputError
from kernel_space.inputs import TORCH_DTYPES, require_matrix, require_tensor
from kernel_space.nvfp4 import blocked_scale_bytes
from kernel_space.problem import GemmProblem
from tuner.runtime.plan import Plan
from tuner.runtime.trampoline import ALIGN

MAX_PLANS = 65536  # M is whatever the user's batch is, so the number of shapes is not bounded
_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
_HALF = tuple(TORCH_DTYPES.values())

Weights = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class WeightRecord:
    """One layer's weights, checked. ``device``: index of the card, -1 for the CPU. ``plans`` by shape."""

    __slots__ = ("calls", "device", "generation", "k", "lora_dtype", "n", "plans", "r", "references")

    def __init__(self, weights: Weights, generation: int) -> None:
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
        names = ("wgt", "wscales", "lora_up", "wcscale", "bias")
        for name, tensor in zip(names, weights, strict=True):
            require_launchable(tensor, name, wgt.device)
        self.generation = generation
        self.plans: dict[tuple, Plan | None] = {}
        self.calls: dict[tuple, Any] = {}  # of quick.py
        self.references: list[weakref.ref] = []

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

    def remember(self, key: tuple, plan: Plan | None) -> None:
        _put(self.plans, key, plan)

    def remember_call(self, key: tuple, call: Any) -> None:
        _put(self.calls, key, call)


def _put(known: dict[tuple, Any], key: tuple, value: Any) -> None:
    if len(known) >= MAX_PLANS:
        known.clear()
    known[key] = value


records: dict[tuple[int, ...], WeightRecord] = {}
"""By the identities of a layer's five tensors: wgt, wscales, lora_up, wcscale, bias."""
_lock = threading.Lock()


def record_of(weights: Weights, generation: int) -> WeightRecord:
    """The record of these very tensors, checked now if they are new or the tables changed.

    A record is found by identity and goes when the first of its tensors does, so that a new tensor at an old address
    is checked again.
    """
    key = tuple(map(id, weights))
    record = records.get(key)
    if record is None or record.generation != generation:
        record = WeightRecord(weights, generation)
        with _lock:
            record.references = [
                weakref.ref(tensor, lambda _, key=key: records.pop(key, None)) for tensor in weights
            ]
            records[key] = record
    return record


def require_launchable(tensor: torch.Tensor, name: str, device: torch.device) -> None:
    """Raises ``InputError`` unless ``tensor`` is contiguous, aligned and on ``device``."""
    if tensor.device != device:
        raise InputError(f"{name} must be on {device} like the other operands, got {tensor.device}")
    if not tensor.is_contiguous():
        raise InputError(
            f"{name} must be contiguous, got strides {tuple(tensor.stride())}; call .contiguous()"
        )
    if tensor.data_ptr() % ALIGN:
        raise InputError(f"{name} must start at a multiple of {ALIGN} bytes; call .clone()")
