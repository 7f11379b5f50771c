"""The order of 16-bit activations for kernels whose weights stay packed: 64 elements as four lanes hold them.

A lane t of a quad owns elements 16 t .. 16 t + 15 of every 64 of a row of weights: two words of eight codes, one scale.
It takes pairs (i, i + 4) out of a word w, since these are 16 bits apart, and i = 0, 2 together, then i = 1, 3, which
share a shift. wgmma wants a chunk, eight elements of a row of the other operand, to be the pairs of the four lanes one
after the other. So element 16 t + 8 w + i + 4 e of 64 lies in chunk c = 4 w + 2 (i mod 2) + i div 2, at place
8 c + 2 t + e. A sum over K may be taken in any order, as long as both operands share it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SPAN = 64  # elements that are put in order together


def ordered_columns(k: int) -> int:
    """K rounded up to whole spans."""
    return -(-k // SPAN) * SPAN


def to_quad_order(x: torch.Tensor) -> torch.Tensor:
    """``[M, K]`` -> a new ``[M, ceil(K / 64) * 64]``, zeros for columns beyond K."""
    import torch

    rows, k = x.shape
    padded = torch.nn.functional.pad(x, (0, ordered_columns(k) - k))
    return (
        padded.view(rows, -1, 4, 2, 2, 2, 2).permute(0, 1, 3, 6, 5, 2, 4).reshape(rows, -1)
    )  # t w e i1 i0 -> w i0 i1 t e


def from_quad_order(ordered: torch.Tensor, k: int) -> torch.Tensor:
    """The inverse: ``[M, ceil(K / 64) * 64]`` -> a new ``[M, K]``."""
    rows = ordered.shape[0]
    by_lane = ordered.reshape(rows, -1, 2, 2, 2, 4, 2).permute(
        0, 1, 5, 2, 6, 4, 3
    )  # w i0 i1 t e -> t w e i1 i0
    return by_lane.reshape(rows, -1)[:, :k].contiguous()
