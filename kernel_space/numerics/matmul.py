"""Products in the dtype of their operands."""

from __future__ import annotations

import torch


def as_is(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b`` in their own dtype, which autocast would change."""
    kind = a.device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return a @ b
    with torch.autocast(kind, enabled=False):
        return a @ b
