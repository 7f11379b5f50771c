"""NVFP4: E2M1 elements with one E4M3 scale per 16 along K, and an optional fp32 scale per tensor.

``x[i, k] ~ decode_e2m1(code[i, k]) * scale[i, k // 16] * global_scale``

Number formats: E2M1 has values 0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign (OCP Microscaling Formats 1.0, 5.3.3).
E4M3 has bias 7, largest finite value 448, smallest subnormal 2^-9 and no infinity (OCP 8-bit Floating Point 1.0);
as scales its numbers are never negative, because the tensor core reads them as UE4M3.

Rounding is that of exact arithmetic: every quotient below is one float64 division of exactly represented
numbers of at most 28 significant bits, too few for the quotient to round onto a boundary it does not lie on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.blocked import (
    SF_GROUPS,
    SF_ROWS,
    SF_VEC_SIZE,
    blocked_scale_bytes,
)

E2M1_MAX = 6.0
E4M3_MAX = 448.0
E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # indexed by the low three bits of a code
E2M1_SIGN = 8

E4M3_LARGEST_BYTE = 0x7E  # 0x7F is NaN, from 0x80 on the sign is set

_E2M1 = torch.tensor([*E2M1_MAGNITUDES, *(-x for x in E2M1_MAGNITUDES)])
_E2M1_PAIRS = torch.stack([_E2M1.repeat(16), _E2M1.repeat_interleave(16)], dim=1)  # packed byte -> two values
_CHUNK_BLOCKS = 4096  # 2^16 elements: float64 temporaries stay in the L2 cache, 3x faster than whole tensors
_CARD_CHUNK_BLOCKS = 1 << 20  # on a card each operation costs a launch: 2^24 elements at a time
_QUANTIZABLE = (torch.float16, torch.bfloat16, torch.float32)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class NVFP4Tensor:
    """A quantized ``[rows, k]`` matrix, row-major.

    ``codes``         uint8 ``[rows, k/2]``, two E2M1 codes a byte, the even k in the low nibble
    ``scales``        float8_e4m3fn ``[rows, k/16]``, not blocked
    ``global_scale``  second level: an fp32 value that multiplies everything, or None for one level
    """

    codes: torch.Tensor
    scales: torch.Tensor
    global_scale: float | None = None

    @property
    def rows(self) -> int:
        return self.codes.shape[0]

    @property
    def k(self) -> int:
        return 2 * self.codes.shape[1]


def encode_e2m1(x: torch.Tensor) -> torch.Tensor:
    """Codes (uint8, same shape) nearest to ``x``; ties to the even code, beyond 6 to 6; -0.0 is code 8.

    ``x`` must not hold NaN; infinities saturate.
    """
    magnitude = x.abs()
    # The grid has steps 0.5, 1 and 2 on [0, 2], [2, 4] and [4, 6]. Each rounding below gives the code on its own
    # interval and a larger one elsewhere, so the smallest is right everywhere.
    code = (magnitude * 2).round_()
    torch.minimum(code, magnitude.round().add_(2), out=code)
    torch.minimum(code, (magnitude * 0.5).round_().add_(4), out=code)
    sign = torch.signbit(x).to(torch.uint8).mul_(E2M1_SIGN)
    return code.clamp_(max=7).to(torch.uint8).bitwise_or_(sign)


def decode_e2m1(codes: torch.Tensor) -> torch.Tensor:
    """float32 values (same shape) of codes 0..15."""
    return _E2M1.to(codes.device)[codes.int()]


def pack_e2m1(codes: torch.Tensor) -> torch.Tensor:
    """Codes 0..15 ``[..., k]`` -> bytes ``[..., k/2]``, the even k in the low nibble. k must be even."""
    if codes.dtype != torch.uint8 or codes.shape[-1] % 2:
        raise InputError(f"pack_e2m1 needs uint8 codes of even length, got {_describe(codes)}")
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_e2m1(packed: torch.Tensor) -> torch.Tensor:
    """Bytes ``[..., k/2]`` -> codes 0..15 ``[..., k]``."""
    if packed.dtype != torch.uint8:
        raise InputError(f"unpack_e2m1 needs uint8 bytes, got {_describe(packed)}")
    return torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(-2)


def round_e4m3(x: torch.Tensor) -> torch.Tensor:
    """float8_e4m3fn nearest to ``x`` >= 0 (float64); ties to even, beyond 448 to 448, below 2^-10 to 0.

    Written out because ``Tensor.to(float8_e4m3fn)`` goes through fp32 first, which can round twice.
    """
    step = power_of_two_below(x).clamp_(min=2.0**-6).mul_(2.0**-3)
    return (x / step).round_().mul_(step).clamp_(max=E4M3_MAX).to(torch.float8_e4m3fn)


def power_of_two_below(x: torch.Tensor) -> torch.Tensor:
    """The largest power of two <= ``|x|`` (float64), exactly; 0 for zero and subnormals."""
    return (x.contiguous().view(torch.int64) & 0x7FF0_0000_0000_0000).view(torch.float64)


def nvfp4_global_scale(x: torch.Tensor) -> float:
    """The second-level scale that lets the largest block scale of ``x`` be 448: fp32(amax / 2688).

    1.0 when that is zero.
    """
    scale = x.abs().amax().double() / (E2M1_MAX * E4M3_MAX)
    return scale.float().item() or 1.0


def quantize_nvfp4(x: torch.Tensor, *, global_scale: float | None = None) -> NVFP4Tensor:
    """Quantize fp16, bf16 or fp32 ``[rows, k]``, k a multiple of 16.

    Per block of 16: ``scale = e4m3(amax / 6 / global_scale)``, ``code = e2m1(x / (scale * global_scale))``, both
    round to nearest even and saturate. A block whose scale rounds to zero (all zeros, or amax / 6 / global_scale at
    most 2^-10) becomes scale 0 and codes 0. Without ``global_scale`` elements beyond 2688 saturate. For a second
    level pass ``nvfp4_global_scale(x)``, or a calibrated value, which is rounded to fp32.

    Raises ``InputError`` for another dtype or shape, for NaN or infinity, and for a ``global_scale`` that is not a
    positive finite fp32 number.
    """
    if x.ndim != 2 or x.dtype not in _QUANTIZABLE or x.shape[1] % SF_VEC_SIZE or not x.numel():
        raise InputError(
            f"quantize_nvfp4 needs fp16, bf16 or fp32 [rows, k] with k a multiple of {SF_VEC_SIZE}, got {_describe(x)}"
        )
    if global_scale is not None:
        global_scale = _fp32_scale(global_scale)
    rows, k = x.shape
    codes = torch.empty((rows * k // SF_VEC_SIZE, SF_VEC_SIZE // 2), dtype=torch.uint8, device=x.device)
    scales = torch.empty(codes.shape[0], dtype=torch.float8_e4m3fn, device=x.device)
    blocks = x.reshape(-1, SF_VEC_SIZE)
    for chunk in _chunks(len(blocks), _CHUNK_BLOCKS if x.device.type == "cpu" else _CARD_CHUNK_BLOCKS):
        codes[chunk], scales[chunk] = _quantize_blocks(blocks[chunk].double(), global_scale or 1.0)
        if not torch.isfinite(blocks[chunk]).all():
            raise InputError(_not_finite(x))
    return NVFP4Tensor(
        codes=codes.view(rows, k // 2), scales=scales.view(rows, k // SF_VEC_SIZE), global_scale=global_scale
    )


def _quantize_blocks(blocks: torch.Tensor, global_scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """float64 ``[blocks, 16]`` -> packed codes ``[blocks, 8]`` and scales ``[blocks]``."""
    scales = round_e4m3(blocks.abs().amax(dim=1) / (E2M1_MAX * global_scale))
    step = scales.double().mul_(global_scale).unsqueeze(1)
    empty = step == 0
    codes = encode_e2m1(blocks / step.masked_fill_(empty, 1.0)).masked_fill_(empty, 0)
    return pack_e2m1(codes), scales


def dequantize_nvfp4(tensor: NVFP4Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """``[rows, k]`` in ``dtype``. Exact with one level (6 significant bits, even fp16 holds them) and in float64;
    a global scale is multiplied in ``dtype``.
    """
    codes = _E2M1_PAIRS.to(tensor.codes.device)[tensor.codes.int()]
    values = codes.view(tensor.rows, -1, SF_VEC_SIZE) * tensor.scales.float().unsqueeze(2)
    values = values.view(tensor.rows, tensor.k).to(dtype)
    return values if tensor.global_scale is None else values.mul_(tensor.global_scale)


def block_scales(scales: torch.Tensor) -> torch.Tensor:
    """float8_e4m3fn ``[rows, k/16]`` -> the uint8 bytes of the 128x4 -> 32x4x4 blocked layout, one-dimensional.

    The scale of row m, group g is byte ``(m % 32) * 16 + (m % 128) // 32 * 4 + g % 4`` of the 512-byte block
    ``(m // 128) * ceil(groups / 4) + g // 4``; rows are padded to 128 and groups to 4 with zeros.
    """
    if scales.ndim != 2 or scales.dtype != torch.float8_e4m3fn:
        raise InputError(f"block_scales needs float8_e4m3fn [rows, k/16], got {_describe(scales)}")
    rows, groups = scales.shape
    row_blocks, group_blocks = math.ceil(rows / SF_ROWS), math.ceil(groups / SF_GROUPS)
    padded = scales.new_zeros((row_blocks * SF_ROWS, group_blocks * SF_GROUPS), dtype=torch.uint8)
    padded[:rows, :groups] = scales.view(torch.uint8)
    tiles = padded.view(row_blocks, 4, 32, group_blocks, SF_GROUPS)
    return tiles.permute(0, 3, 2, 1, 4).contiguous().view(-1)


def unblock_scales(blocked: torch.Tensor, rows: int, k: int) -> torch.Tensor:
    """The inverse of ``block_scales``: uint8 bytes -> float8_e4m3fn ``[rows, k/16]``; padding is dropped."""
    expected = blocked_scale_bytes(rows, k)
    if blocked.dtype != torch.uint8 or blocked.shape != (expected,):
        raise InputError(
            f"the blocked scales of {rows} rows and K={k} are uint8 [{expected}], got {_describe(blocked)}"
        )
    tiles = blocked.view(math.ceil(rows / SF_ROWS), -1, 32, 4, SF_GROUPS).permute(0, 3, 2, 1, 4)
    padded = tiles.reshape(math.ceil(rows / SF_ROWS) * SF_ROWS, -1)
    return padded[:rows, : k // SF_VEC_SIZE].contiguous().view(torch.float8_e4m3fn)


def require_scale_bytes(scales: torch.Tensor, name: str) -> None:
    """Raise ``InputError`` naming the first scale of ``[rows, groups]`` that is NaN or has its sign bit set."""
    bad = scales.view(torch.uint8) > E4M3_LARGEST_BYTE
    if bad.any():
        row, group = bad.nonzero()[0].tolist()
        raise InputError(
            f"{name} must be finite and not negative, got {scales[row, group].item()} at row {row}, group {group}"
        )


def _fp32_scale(value: float) -> float:
    rounded = torch.tensor(float(value), dtype=torch.float64).float().item()
    if not 0.0 < rounded < math.inf:
        raise InputError(f"global_scale must be a positive finite fp32 number, got {value}")
    return rounded


def _chunks(length: int, step: int) -> Iterator[slice]:
    return (slice(start, start + step) for start in range(0, length, step))


def _not_finite(x: torch.Tensor) -> str:
    row, column = (~torch.isfinite(x)).nonzero()[0].tolist()
    return f"quantize_nvfp4 needs finite numbers, got {x[row, column].item()} at row {row}, column {column}"


def _describe(x: torch.Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"
