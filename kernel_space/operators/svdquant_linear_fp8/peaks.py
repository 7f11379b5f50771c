"""``wpeak``: how large a weight of each row of a layer can be, which its FP8 numbers are scaled by.

A bound and no maximum: it is computed from scales and norms, without a matrix of the layer's size, so that an adapter
costs little to switch. E4M3 has 15 binary orders of magnitude of normal numbers. A bound that is some powers of two too
large takes from the smallest weights alone.
"""

from __future__ import annotations

import torch

from kernel_space.numerics.nvfp4 import unblock_scales
from kernel_space.operators.nvfp4_quantize.packing import unpack_lora_down

LARGEST_CODE = 6.0  # of E2M1
BLOCK = 16  # elements of a scale
LEAST = 2.0**-100  # a row of zeros has a peak too, and its reciprocal is finite
SLACK = 1 + 2.0**-10  # roundings of fp32


def row_peaks(
    wscales: torch.Tensor, smooth: torch.Tensor, lora_down: torch.Tensor, lora_up: torch.Tensor
) -> torch.Tensor:
    """fp32 ``[N]``: at least ``max_k |wgt / smooth + lora_up @ lora_down.T|`` of each row, in units of wcscale.

    ``wscales`` blocked, ``smooth`` fp32 ``[K]``, ``lora_down`` packed, ``lora_up`` ``[N, R]``. By the largest code of
    every block and by Cauchy-Schwarz.
    """
    n, k = lora_up.shape[0], smooth.shape[0]
    scales = unblock_scales(wscales, n, k).view(torch.float8_e4m3fn).float()
    inverse = torch.nn.functional.pad(1 / smooth, (0, -k % BLOCK)).view(-1, BLOCK).amax(1)
    peaks = LARGEST_CODE * (scales * inverse).amax(1)
    if lora_up.shape[1]:
        down = unpack_lora_down(lora_down, k).float()
        peaks += (
            torch.linalg.vector_norm(lora_up.float(), dim=1) * torch.linalg.vector_norm(down, dim=1).amax()
        )
    return (peaks * SLACK).clamp_(min=LEAST)
