"""The operator in plain torch, for machines without a supported card: right, and slow.

Computes the packed contract (docs/operator.md): operands dequantized exactly to fp32, products and sums in fp32, one
rounding to the output's dtype.
"""

from __future__ import annotations

import threading
import warnings

import torch

from kernel_space.numerics.nvfp4 import NVFP4Tensor, dequantize_nvfp4, unblock_scales
from tuner.runtime.autocast import matmul

_once = threading.Lock()
_warned = False


def reference_gemm(
    act: torch.Tensor,
    ascales: torch.Tensor,
    wgt: torch.Tensor,
    wscales: torch.Tensor,
    lora_act_in: torch.Tensor,
    lora_up: torch.Tensor,
    wcscale: torch.Tensor,
    bias: torch.Tensor,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """``[M, N]`` in ``out_dtype`` of checked operands, on the device on which they are."""
    sums = matmul(_decode(act, ascales), _decode(wgt, wscales).T)
    if lora_up.shape[1]:
        sums += matmul(lora_act_in.float(), lora_up.float().T)
    return (sums * wcscale + bias).to(out_dtype)


def warn_once(device: torch.device) -> None:
    """Say, once per process, that the reference is what runs."""
    global _warned
    with _once:
        if _warned:
            return
        _warned = True
    warnings.warn(
        f"svdquant_gemm on {device} is the torch reference, which is slow: no kernel here runs on that device",
        stacklevel=4,
    )


def _decode(codes: torch.Tensor, blocked: torch.Tensor) -> torch.Tensor:
    rows, k = codes.shape[0], 2 * codes.shape[1]
    return dequantize_nvfp4(NVFP4Tensor(codes=codes, scales=unblock_scales(blocked, rows, k)))
