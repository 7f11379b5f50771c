"""``torch.autocast`` around the run time: it names the dtype of a layer's output and changes nothing inside.

Plain ``if``s on what torch knows, so that torch.compile sees through them and guards them.
"""

from __future__ import annotations

import torch

_KINDS = (
    "cpu",
    "cuda",
)  # where the operators have implementations; torch refuses to be asked about some others


def autocast_dtype(x: torch.Tensor) -> torch.dtype | None:
    """What autocast makes of a linear layer's output on the device of ``x``; None outside of autocast for it."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if _enabled(kind) else None


def _enabled(kind: str) -> bool:
    return kind in _KINDS and torch.is_autocast_enabled(kind)
