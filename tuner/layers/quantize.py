"""``quantize_act``: the activation half of the layer, as the torch operator ``svdquant::quantize`` and a matmul.

The definition, which every path computes to the bit:

    z = x * (1 / smooth)                          in fp32, the reciprocal rounded first
    scale = e4m3(amax(|z|) * (1 / 6))             of 16 elements along K, in the blocked layout
    act = e2m1(z * (1 / scale))                   docs/kernel_quantize.md; every step rounded to fp32

Like nunchaku's kernels, the low-rank branch sees ``x`` itself: ``lora_act_in = x @ lora_down``, so a ``lora_down``
that was found for smoothed activations must be divided by ``smooth`` once, when it is packed.
"""

from __future__ import annotations

import functools

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.tensors import FLOAT_DTYPES, require_tensor
from kernel_space.operators.nvfp4_quantize.reference import expected_outputs
from kernel_space.operators.svdquant_gemm.problem import K_MULTIPLE
from kernel_space.operators.svdquant_gemm.runtime import as_is
from tuner.layers.gemm import LIBRARY, no_backward
from tuner.runtime.torch_operator import needs_dispatcher

X_DTYPES = (torch.float16, torch.bfloat16, torch.float32)

LIBRARY.define(
    "quantize(Tensor x, Tensor? smooth) -> (Tensor act, Tensor ascales)", tags=(torch.Tag.pt2_compliant_tag,)
)


def quantize_act(
    x: torch.Tensor, smooth: torch.Tensor | None, lora_down: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(act, ascales, lora_act_in) of activations, for ``svdquant_gemm``.

    ``x``          ``[M, K]`` float16, bfloat16 or float32, K a multiple of 32; finite
    ``smooth``     ``[K]`` float, positive: what x is divided by before it is quantized; None: nothing
    ``lora_down``  ``[K, R]`` float16 or bfloat16: its dtype is that of ``lora_act_in``; None: R = 0, in float16

    Returns ``act`` uint8 ``[M, K/2]``, ``ascales`` uint8 in the blocked layout and ``lora_act_in = x @ lora_down``,
    ``[M, R]`` (x is cast to lora_down's dtype first; ``torch.autocast`` changes nothing of it). A block of 16
    along K in which ``x / smooth`` is not finite in fp32 is an ``InputError`` on the CPU; on a card, where asking would
    wait for the device, its scale is NaN (byte 0x7F), its codes are anything, and ``svdquant_gemm`` makes its whole
    row of y NaN.

    Raises ``InputError`` for shapes and dtypes that do not fit, and for an x that requires grad in grad mode.
    """
    if x.requires_grad and torch.is_grad_enabled():
        raise no_backward("quantize_act")
    if needs_dispatcher(x):
        act, ascales = torch.ops.svdquant.quantize(x, smooth)
    else:
        act, ascales = _quantize(x, smooth)
    return act, ascales, _lora_act(x, lora_down)


def _lora_act(x: torch.Tensor, lora_down: torch.Tensor | None) -> torch.Tensor:
    if lora_down is None:
        return x.new_empty((x.shape[0], 0), dtype=torch.float16)
    if lora_down.ndim != 2 or lora_down.shape[0] != x.shape[1]:
        raise InputError(f"lora_down must be [{x.shape[1]}, R], got {list(lora_down.shape)}")
    if lora_down.device != x.device:
        raise InputError(f"lora_down must be on {x.device} like x, got {lora_down.device}")
    if x.is_cuda or lora_down.shape[1] == 0:
        return as_is(x.to(lora_down.dtype), lora_down)
    # CPU builds of torch have no fast fp16 matmul, and some accumulate it in fp16.
    return as_is(x.to(lora_down.dtype).float(), lora_down.float()).to(lora_down.dtype)


def _quantize(x: torch.Tensor, smooth: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    _check(x, smooth)
    x = x.contiguous()
    smooth = None if smooth is None else smooth.float().contiguous()
    if x.shape[0] == 0:
        return _empty(x)
    if x.is_cuda and _has_triton():
        from tuner.layers.quantize_triton import quantize_on_card

        return quantize_on_card(x, smooth)
    found = expected_outputs(x, smooth)
    if not found.defined.all():
        row, byte = (~found.defined).nonzero()[0].tolist()
        raise InputError(
            f"quantize_act needs finite numbers, x / smooth has others at row {row}, columns {2 * byte} to "
            f"{2 * byte + 15}"
        )
    return found.act, found.ascales


def _empty(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    m, k = x.shape
    act = x.new_empty((m, k // 2), dtype=torch.uint8)
    return act, x.new_empty(-(-m // 128) * -(-k // 64) * 512, dtype=torch.uint8)


for _key in ("CPU", "CUDA"):
    LIBRARY.impl("quantize", _quantize, _key)


@torch.library.register_fake("svdquant::quantize", lib=LIBRARY)
def _fake_quantize(x: torch.Tensor, smooth: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    return _empty(x)  # blocked_scale_bytes, in arithmetic that a symbolic M goes through


def _check(x: torch.Tensor, smooth: torch.Tensor | None) -> None:
    if x.ndim != 2 or x.dtype not in X_DTYPES or x.shape[1] % K_MULTIPLE or not x.shape[1]:
        came = f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"
        raise InputError(
            f"x must be float16, bfloat16 or float32 [M, K], K a multiple of {K_MULTIPLE}, got {came}"
        )
    if smooth is None:
        return
    require_tensor(smooth, "smooth", FLOAT_DTYPES, (x.shape[1],))
    if smooth.device != x.device:
        raise InputError(f"smooth must be on {x.device} like x, got {smooth.device}")


@functools.cache
def _has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True
