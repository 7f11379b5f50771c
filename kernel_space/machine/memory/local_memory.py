"""Local memory: every lane's own bytes. Addresses are offsets in a window of their own, the same in all lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kernel_space.machine.memory.undefined import UndefinedBytes, load_bits, store_bits
from kernel_space.machine.values.address_windows import LOCAL_WINDOW
from kernel_space.machine.values.faults import IllegalAccess
from kernel_space.machine.values.lanes import LANES, UNSIGNED, Array, Value, lane_flags, spread

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Warp


def _cells(w: Warp, address: Value, size: int, count: int, mask: int) -> tuple[Array, Array]:
    """(all local bytes of the warp as elements [lane, element], each lane's element). Raises ``IllegalAccess``."""
    if w.local is None:
        w.local = np.zeros((LANES, w.machine.program.local_bytes), np.uint8)
    offsets = spread(address, 64).astype(np.int64) - LOCAL_WINDOW
    offsets = np.where(lane_flags(mask), offsets, 0)
    limit = w.local.shape[1]
    if offsets.min() < 0 or offsets.max() + size * count > limit or (offsets % size).any():
        raise IllegalAccess(
            f"local access of {size * count} bytes at offsets {int(offsets.min())}..{int(offsets.max())} of {limit}"
        )
    return w.local.view(UNSIGNED[8 * size]), offsets // size


def _bits(w: Warp) -> UndefinedBytes:
    """Lane after lane."""
    if w.local_undefined is None:
        w.local_undefined = UndefinedBytes(w.local.size, undefined=True)
    found: UndefinedBytes = w.local_undefined
    return found


def load_local(w: Warp, address: Value, size: int, count: int, mask: int, site: int) -> list[Array]:
    w.site = site
    elements, at = _cells(w, address, size, count, mask)
    if w.races is not None:
        where = np.arange(LANES) * w.local.shape[1] + at * size
        load_bits(w, _bits(w), "local memory", where, size, count, mask, site, grain=size)
    return [elements[np.arange(LANES), at + number] for number in range(count)]


def store_local(w: Warp, address: Value, size: int, values: tuple[Value, ...], mask: int, site: int) -> None:
    w.site = site
    elements, at = _cells(w, address, size, len(values), mask)
    lanes = np.flatnonzero(lane_flags(mask))
    if w.races is not None:
        where = lanes * w.local.shape[1] + at[lanes] * size
        store_bits(w, _bits(w), where, size, len(values), mask, site, grain=size)
    for number, value in enumerate(values):
        elements[lanes, at[lanes] + number] = spread(value, 8 * size)[lanes]
