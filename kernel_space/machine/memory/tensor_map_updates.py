"""Tensor maps that a kernel changes: ``tensormap.replace`` and ``tensormap.cp_fenceproxy``. PTX ISA 9.7.9.28.

Layout of the 128 bytes: ``kernel_space.launch.tensor_map``. Strides are given in bytes, extents as they are, the rank
as rank - 1. The race checker wants a release by the writer and an acquire by the user before the next TMA operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from kernel_space.launch.tensor_map import TENSOR_MAP_BYTES
from kernel_space.machine.values.address_windows import SHARED_WINDOW
from kernel_space.machine.values.faults import IllegalAccess, ProtocolError
from kernel_space.machine.values.lanes import FULL, Array
from kernel_space.machine.values.undefined import UndefinedValue

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Warp

ORDINAL_FIELDS = ("box_dim", "global_dim", "global_stride", "element_stride")
CODE_FIELDS = ("elemtype", "interleave_layout", "swizzle_mode", "fill_mode", "swizzle_atomicity")
FIELDS = ("global_address", "rank", *ORDINAL_FIELDS, *CODE_FIELDS)
_LESS_ONE = ("box_dim", "global_dim", "element_stride")
_MEANT_BYTES = 64  # of a map; what lies behind has no meaning
_MOST_ORDINALS = {"box_dim": 5, "global_dim": 5, "element_stride": 5, "global_stride": 4}


def _set_bits(words: Array, number: int, low: int, width: int, value: int) -> None:
    mask = ((1 << width) - 1) << low
    words[number] = (int(words[number]) & ~mask) | (value << low & mask)


def _global_address(words: Array, _: int, value: int) -> None:
    words[0], words[1] = value & 0xFFFFFFFF, value >> 32


def _global_stride(words: Array, ordinal: int, value: int) -> None:
    if value % 16:
        raise ProtocolError(f"tensormap.replace: a stride must be a multiple of 16 bytes, got {value}")
    words[3 + ordinal] = value >> 4 & 0xFFFFFFFF
    _set_bits(words, 7, 4 * ordinal, 4, value >> 36)


def _global_dim(words: Array, ordinal: int, value: int) -> None:
    words[8 + ordinal] = (value - 1) & 0xFFFFFFFF


def _box_dim(words: Array, ordinal: int, value: int) -> None:
    words.view(np.uint8)[55 + ordinal] = (value - 1) & 0xFF


def _element_type(words: Array, _: int, value: int) -> None:
    """Codes of the instruction: as in the descriptor up to BF16 = 10, then TF32 (a flag of F32) and packed types."""
    tf32 = value in (11, 12)
    code = {11: 7, 12: 8, 13: 11, 14: 12, 15: 13}.get(value, value)
    _set_bits(words, 2, 7, 4, code)
    _set_bits(words, 2, 16, 1, int(tf32))


_SETTERS: dict[str, Callable[[Array, int, int], None]] = {
    "global_address": _global_address,
    "rank": lambda words, _, value: _set_bits(words, 2, 4, 3, value),
    "box_dim": _box_dim,
    "global_dim": _global_dim,
    "global_stride": _global_stride,
    "element_stride": lambda words, ordinal, value: _set_bits(words, 13, 3 * ordinal, 3, value - 1),
    "elemtype": _element_type,
    "interleave_layout": lambda words, _, value: _set_bits(words, 2, 11, 2, value),
    "swizzle_mode": lambda words, _, value: _set_bits(words, 2, 13, 2, value),
    "fill_mode": lambda words, _, value: _set_bits(words, 2, 15, 1, value),
    "swizzle_atomicity": lambda words, _, value: _set_bits(words, 2, 19, 2, value),
}


def tensormap_replace(
    w: Warp, where: int, shared: bool, field: str, ordinal: int, value: int, site: int
) -> None:
    """Change one field of the tensor map at a shared or generic address."""
    w.site = site
    if ordinal >= _MOST_ORDINALS.get(field, 1):
        raise ProtocolError(f"tensormap.replace.{field} has no ordinal {ordinal}")
    words = (
        _shared_map(w, where, site)
        if shared or where >> 60 == SHARED_WINDOW >> 60
        else _global_map(w, where, site)
    )
    _SETTERS[field](words, ordinal, value)
    _define(w, where, shared, field, ordinal)


def _define(w: Warp, where: int, shared: bool, field: str, ordinal: int) -> None:
    """The bits of a field that was set are defined from now on."""
    if shared or where >> 60 == SHARED_WINDOW >> 60:
        bits, at = w.cta.peer((where & 0xFFFFFFFF) >> 24).smem.undefined, where & 0xFFFFFF
    else:
        region = w.machine.memory.find(where, where + TENSOR_MAP_BYTES, "tensor map")
        bits, at = region.undefined, where - region.base
    if bits is not None:
        zeros = int(field in _LESS_ONE)  # what these fields store is one less than their value
        _SETTERS[field](bits.views[4][at >> 2 : (at + TENSOR_MAP_BYTES) >> 2], ordinal, zeros)


def _shared_map(w: Warp, where: int, site: int, *, writes: bool = True) -> Array:
    cta, offset = w.cta.peer((where & 0xFFFFFFFF) >> 24), where & 0xFFFFFF
    cta.smem.check(offset, offset + TENSOR_MAP_BYTES, 64, "tensor map")
    if w.races is not None:
        if writes:
            w.races.shared_write(w, cta, offset, TENSOR_MAP_BYTES, FULL, site)
        else:
            w.races.shared_read(w, cta, offset, TENSOR_MAP_BYTES, site)
    bits = cta.smem.undefined
    if bits is not None and not writes and bits.any(offset, offset + _MEANT_BYTES):
        raise UndefinedValue(f"the tensor map at shared offset {offset:#x} has undefined bytes")
    return cta.smem.views[4][offset >> 2 : (offset + TENSOR_MAP_BYTES) >> 2]


def _global_map(w: Warp, where: int, site: int) -> Array:
    if where % 64:
        raise IllegalAccess(f"the tensor map at {where:#x} is not aligned to 64 bytes")
    region = w.machine.memory.find(where, where + TENSOR_MAP_BYTES, "tensor map")
    at = where - region.base
    w.machine.global_version += 1
    if w.races is not None:
        w.races.global_write(w, region, at, TENSOR_MAP_BYTES, "weak", "", FULL, site)
        w.races.map_written(w, where, site)
    return region.views[4][at >> 2 : (at + TENSOR_MAP_BYTES) >> 2]


def tensormap_copy(w: Warp, to: int, come: int, site: int) -> None:
    """``tensormap.cp_fenceproxy``: shared to global, with a release for the tensor-map proxy."""
    w.site = site
    source = _shared_map(w, come, site, writes=False)
    _global_map(w, to, site)[:] = source
    region = w.machine.memory.find(to, to + TENSOR_MAP_BYTES, "tensor map")
    if region.undefined is not None:
        region.undefined.u8[to - region.base : to - region.base + TENSOR_MAP_BYTES] = 0
    if w.races is not None:
        w.races.map_released(w, to)


def tensormap_release(w: Warp, site: int) -> None:
    """``fence.proxy.tensormap::generic.release``: of everything this warp changed."""
    w.site = site
    if w.races is not None:
        w.races.map_released(w, None)


def tensormap_acquire(w: Warp, where: int, site: int) -> None:
    """``fence.proxy.tensormap::generic.acquire``: of one tensor map."""
    w.site = site
    if w.races is not None:
        w.races.map_acquired(w, where)
