"""Layers with ``qweight``: nunchaku (v2 and earlier), diffusers' Nunchaku Lite, DeepCompressor, vllm-omni; and AWQ.

    y = (wtscale S) wcscales + bias + (x @ proj_down) @ proj_up.T      x / smooth_factor is what is quantized

The names are the same; the order of elements is not: ``Layout.FRAGMENTS`` (``fragments.py``) or ``Layout.ROWS``, as
vllm-omni writes them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.tensors import FLOAT_DTYPES
from tuner.layers.checkpoints import fragments
from tuner.layers.checkpoints.group import Group, require_finite
from tuner.layers.checkpoints.parts import Parts

_BYTES = (torch.int8, torch.uint8)
_HALF = (torch.float16, torch.bfloat16)
_AWQ_GROUPS = (64, 128, 32)
ADANORM_ONES = (1, -2)  # chunks of an AdaNorm linear with a one in the bias: the scales


class Layout(enum.StrEnum):
    """The order of elements within a tensor."""

    FRAGMENTS = "nunchaku"
    ROWS = "row-major"


def fits_fragments(group: Group) -> bool:
    """Whether the tensors can be in fragments: sizes are padded then."""
    sizes = group.tensors["qweight"].shape
    return len(sizes) == 2 and sizes[0] % fragments.TILE_N == 0 and sizes[1] % (fragments.TILE_K // 2) == 0


def read(group: Group, layout: Layout) -> Parts:
    """Raises ``InputError`` for tensors that do not fit, with their names."""
    group.taken.add("smooth_factor_orig")
    qweight = group.take("qweight", _BYTES, (None, None))
    n, k = qweight.shape[0], 2 * qweight.shape[1]
    _require_nvfp4(group, k)
    packed = layout is Layout.FRAGMENTS
    if packed and not fits_fragments(group):
        raise InputError(
            f"{group.names['qweight']} must be padded to multiples of 128 in N and 64 in K as nunchaku's are, got "
            f"{list(qweight.shape)}; row-major tensors need layout='row-major'"
        )
    wscales = group.take("wscales", (torch.float8_e4m3fn,), (k // 16, n))
    down, up = _branch(group, n, k, packed)
    parts = Parts(
        wgt=fragments.codes(qweight) if packed else qweight.contiguous().view(torch.uint8),
        wscales=fragments.scales(wscales) if packed else _transposed(wscales),
        smooth=_vector(group, "smooth_factor", k, packed, torch.ones),
        lora_down=down,
        lora_up=up,
        wcscale=_vector(group, "wcscales", n, packed, torch.ones),
        alpha=1.0 if (found := group.number("wtscale")) is None else found,
        bias=_vector(group, "bias", n, packed, torch.zeros),
    )
    parts.cut(*_sizes(group, n, k, packed))
    return parts


def _require_nvfp4(group: Group, k: int) -> None:
    """INT4 and MXFP4 layers have the same names."""
    found = group.tensors.get("wscales")
    if found is None or found.dtype == torch.float8_e4m3fn or found.ndim != 2:
        return
    name = group.names["wscales"]
    if found.dtype in _HALF and found.shape[0] * 64 == k:
        raise InputError(f"{name} has scales of INT4 (16 bits, one per 64); only NVFP4 layers can be loaded")
    if found.dtype == torch.uint8 and found.shape[0] * 32 == k:
        raise InputError(f"{name} has scales of MXFP4 (8 bits, one per 32); only NVFP4 layers can be loaded")


def _sizes(group: Group, n: int, k: int, packed: bool) -> tuple[int, int]:
    """(N, K) without padding, as far as the tensors tell: vectors and the branch may be padded to 16 only."""
    if not packed:
        return n, k
    of_n = {group.tensors[own].shape[0] for own in ("bias", "wcscales", "proj_up") if own in group}
    of_k = {group.tensors[own].shape[0] for own in ("smooth_factor", "proj_down") if own in group}
    return min(of_n, default=n), min(of_k, default=k)


def _transposed(wscales: torch.Tensor) -> torch.Tensor:
    raw = wscales.contiguous().view(torch.uint8).T.contiguous()
    return raw.view(torch.float8_e4m3fn)


def _length(group: Group, own: str, size: int, packed: bool) -> int:
    """How many rows the tensor must have: ``size``, or its own where fragments of 16 may end before those of 128."""
    given = group.tensors[own].shape[0] if group.tensors[own].ndim else 0
    return (
        given if packed and size - fragments.TILE_N < given <= size and given % fragments.TILE == 0 else size
    )


def _vector(
    group: Group, own: str, size: int, packed: bool, otherwise: Callable[[int], torch.Tensor]
) -> torch.Tensor:
    """In order and of ``size``: what is padded here is cut off later."""
    if own not in group:
        group.taken.add(own)
        return otherwise(size)
    length = _length(group, own, size, packed)
    found = group.take(own, FLOAT_DTYPES, (length,))
    return _longer(fragments.vector(found), size, 1.0) if packed else found


def _longer(tensor: torch.Tensor, size: int, value: float = 0.0) -> torch.Tensor:
    """With rows of ``value`` behind, ``size`` in all."""
    more = tensor.new_full((size - tensor.shape[0], *tensor.shape[1:]), value)
    return torch.cat([tensor, more])


def _branch(group: Group, n: int, k: int, packed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(lora_down ``[K, R]``, lora_up ``[N, R]``); R = 0 where there is none."""
    if "proj_down" not in group and "proj_up" not in group:
        group.taken |= {"proj_down", "proj_up"}
        return torch.zeros(k, 0), torch.zeros(n, 0)
    if "proj_down" not in group or "proj_up" not in group:
        there = next(own for own in ("proj_down", "proj_up") if own in group)
        raise InputError(f"{group.names[there]} is one half of a low-rank branch, the other one is missing")
    down = group.take("proj_down", FLOAT_DTYPES, (_length(group, "proj_down", k, packed), None))
    rank = down.shape[1]
    up = group.take("proj_up", FLOAT_DTYPES, (_length(group, "proj_up", n, packed), rank))
    if not packed:
        return down, up
    if rank % fragments.TILE:
        raise InputError(f"{group.names['proj_down']} must have R padded to a multiple of 16, got {rank}")
    return _longer(fragments.lora_down(down), k), _longer(fragments.lora_up(up), n)


def read_awq(group: Group, chunks: int) -> torch.nn.Linear:
    """A linear of 4-bit weights alone: ``W = code * wscales + wzeros`` by groups of K, in 16 bits here.

    ``chunks``: of an AdaNorm linear whose rows are interleaved and whose bias has ones for the scales, 0 otherwise.
    """
    qweight = group.take("qweight", (torch.int32,), (None, None))
    n, k = 4 * qweight.shape[0], 2 * qweight.shape[1]
    if k % fragments.TILE_K:
        raise InputError(f"{group.names['qweight']} must have K a multiple of 64, got K = {k}")
    rows = group.take("wscales", _HALF, (None, n)).shape[0]
    size = _awq_group(group, k, rows)
    scale, zero = (group.take(own, _HALF, (rows, n))[: k // size] for own in ("wscales", "wzeros"))
    bias = group.maybe("bias", FLOAT_DTYPES, (n,))
    codes = fragments.awq_codes(qweight).view(n, k // size, size)
    weight = codes.double() * scale.double().T.unsqueeze(2) + zero.double().T.unsqueeze(2)
    return _linear(weight.view(n, k), bias, chunks, group)


def _awq_group(group: Group, k: int, rows: int) -> int:
    """Columns of a group, from how many rows the scales have, which tinychat pads."""
    for size in _AWQ_GROUPS:
        packs = -(-(k // size) // 8)
        step = max(1, 128 // size)
        padded = -(-packs // step) * step * 8
        if k % size == 0 and rows in (k // size, padded):
            return size
    name = group.names["wscales"]
    raise InputError(f"{name} must have a row per 64, 128 or 32 columns of K = {k}, got {rows} rows")


def _linear(weight: torch.Tensor, bias: torch.Tensor | None, chunks: int, group: Group) -> torch.nn.Linear:
    dtype, (n, k) = group.dtype("wscales"), weight.shape
    if chunks:
        if n % chunks:
            raise InputError(f"{group.names['qweight']} must have rows of {chunks} chunks, got {n}")
        weight = weight.view(n // chunks, chunks, k).transpose(0, 1).reshape(n, k)
    linear = torch.nn.Linear(k, n, bias=bias is not None, dtype=dtype)
    values = weight.to(dtype)
    require_finite(values, f"the weight of {group.name} as {str(dtype).removeprefix('torch.')}")
    linear.weight = torch.nn.Parameter(values, requires_grad=False)
    if bias is not None:
        linear.bias = torch.nn.Parameter(_model_bias(bias, chunks).to(dtype), requires_grad=False)
    return linear


def _model_bias(bias: torch.Tensor, chunks: int) -> torch.Tensor:
    """fp32, in the model's order and without the ones."""
    if not chunks:
        return bias.float()
    by_chunk = bias.float().view(-1, chunks).T.contiguous()
    for chunk in sorted({one % chunks for one in ADANORM_ONES}):
        by_chunk[chunk] -= 1.0
    return by_chunk.view(-1)
