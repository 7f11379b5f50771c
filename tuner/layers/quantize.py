"""``quantize_act``: the activation half of the layer, as the torch operator ``svdquant::quantize`` and a matmul.

The definition, which every path computes to the bit, is that of ``nvfp4_quantize`` (docs/kernel_quantize.md):

    z = fp32(x) * (1 / smooth)                    the reciprocal rounded to fp32 first
    act, ascales = nvfp4(z)                       one level, scales in the blocked layout

Like nunchaku's kernels, the low-rank branch sees ``x`` itself: ``lora_act_in = x @ lora_down``, so a ``lora_down``
that was found for smoothed activations must be divided by ``smooth`` once, when it is packed. A layer does both in one
call (``linear_op``); this is for those who need the halves.
"""

from __future__ import annotations

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.matmul import as_is
from kernel_space.numerics.tensors import FLOAT_DTYPES, require_tensor
from kernel_space.operators.nvfp4_quantize.packing import packed_shape
from kernel_space.operators.nvfp4_quantize.runtime import lora_down_of
from kernel_space.operators.svdquant_gemm.problem import K_MULTIPLE
from tuner.layers.gemm import LIBRARY, no_backward
from tuner.runtime.caller import caller_of
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
    return lora_down_of(x.to(lora_down.dtype), lora_down)


def _quantize(x: torch.Tensor, smooth: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    _check(x, smooth)
    if x.shape[0] == 0:
        return _empty(x)
    caller = caller_of("nvfp4_quantize")
    # A product with one is exact, and no object for problems without smooth is needed.
    ones = x.new_ones(x.shape[1], dtype=torch.float32) if smooth is None else smooth.float().contiguous()
    inputs = (x.contiguous(), ones, x.new_empty(packed_shape(x.shape[1], 0)))
    made = caller.short_way(inputs, None, None) or caller.run(inputs, None, (), quick=True)
    act, ascales, _ = made
    if not x.is_cuda:
        _require_finite(x, smooth)
    return act, ascales


def _require_finite(x: torch.Tensor, smooth: torch.Tensor | None) -> None:
    z = x.float() if smooth is None else x.float() * smooth.float().reciprocal()
    if not (finite := torch.isfinite(z)).all():
        row, column = (~finite).nonzero()[0].tolist()
        raise InputError(
            f"quantize_act needs finite numbers, x / smooth has others at row {row}, columns {column // 16 * 16} to "
            f"{column // 16 * 16 + 15}"
        )


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
