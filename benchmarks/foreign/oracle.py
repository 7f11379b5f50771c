"""What a program compares its results with: every comparison of torch and numpy is counted, its worst error kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch


@dataclasses.dataclass
class Comparisons:
    """``worst``: the largest absolute difference of all comparisons; ``largest``: the largest element expected."""

    count: int = 0
    worst: float = 0.0
    largest: float = 0.0

    def note(self, got: Any, expected: Any) -> None:
        left, right = _float64(got), _float64(expected)
        self.count += 1
        if left is None or right is None or left.shape != right.shape or not left.numel():
            return
        equal = (left == right) | (left.isnan() & right.isnan())
        difference = torch.where(equal, torch.zeros_like(left), (left - right).abs())
        self.worst = max(self.worst, float(difference.nan_to_num(float("inf")).max()))
        self.largest = max(self.largest, float(right.abs().nan_to_num(0.0, posinf=0.0).max()))

    def note_difference(self, worst: float, largest: float) -> None:
        self.count += 1
        self.worst, self.largest = max(self.worst, worst), max(self.largest, largest)


def watch() -> Comparisons:
    """Count the comparisons of this process from now on."""
    seen = Comparisons()
    vars(torch)["_scaled_mm"] = scaled_product
    for owner, name in (
        (torch.testing, "assert_close"),
        (torch, "allclose"),
        (torch, "equal"),
        (np.testing, "assert_allclose"),
        (np.testing, "assert_array_equal"),
        (np, "allclose"),
        (np, "array_equal"),
    ):
        setattr(owner, name, _watched(getattr(owner, name), seen))
    return seen


_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)


def scaled_product(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, **options: Any
) -> torch.Tensor:
    """``torch._scaled_mm`` of block-scaled operands, which needs a card, in float64: [M,K] x [K,N] -> [M,N].

    Scale factors lie in blocks of 128 rows by 4, row ``r`` of a block at (r % 32, r // 32).
    """
    left, right = _unscaled(a, scale_a), _unscaled(b.transpose(0, 1), scale_b)
    return (left @ right.T).to(options["out_dtype"])


def _unscaled(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    if values.dtype == torch.float4_e2m1fn_x2:
        codes = values.contiguous().view(torch.uint8)
        pairs = torch.stack([codes & 15, codes >> 4], -1).flatten(-2)
        wide = _E2M1[(pairs & 7).long()] * torch.where(pairs >> 3 == 1, -1.0, 1.0)
    else:
        wide = values.to(torch.float64)
    rows, size = wide.shape
    blocks = -(-rows // 128)
    factors = (
        scales.to(torch.float64)
        .flatten()
        .view(blocks, -1, 32, 4, 4)
        .permute(0, 3, 2, 1, 4)
        .reshape(128 * blocks, -1)
    )
    vector = next(n for n in (16, 32) if -(-size // n // 4) * 4 == factors.shape[1])
    return wide * factors[:rows].repeat_interleave(vector, 1)[:, :size]


def _watched(function: Callable[..., Any], seen: Comparisons) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        names = [kwargs[key] for key in ("actual", "expected", "input", "other", "desired") if key in kwargs]
        seen.note(*[*args, *names][:2])
        return function(*args, **kwargs)

    return wrapped


def _float64(value: Any) -> torch.Tensor | None:
    try:
        tensor = torch.as_tensor(value).detach().cpu()
        return tensor.view(torch.uint8).double() if tensor.element_size() == 0 else tensor.to(torch.float64)
    except (TypeError, RuntimeError, ValueError):
        return None
