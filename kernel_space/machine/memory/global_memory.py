"""Global memory: the process's own memory, of which only the tensors that were passed may be touched."""

from __future__ import annotations

import bisect
import ctypes
from typing import TYPE_CHECKING

import numpy as np

from kernel_space.machine.memory.local_memory import load_local, store_local
from kernel_space.machine.memory.smem import load_shared, store_shared
from kernel_space.machine.memory.undefined import UndefinedBytes, load_bits, store_bits
from kernel_space.machine.values.address_windows import (
    LOCAL_WINDOW,
    MODULE_WINDOW,
    PARAM_WINDOW,
    SHARED_WINDOW,
)
from kernel_space.machine.values.faults import IllegalAccess, Unsupported
from kernel_space.machine.values.lanes import FULL, UNSIGNED, Array, Value, first_lane, lane_flags, ndarray

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Warp


class Region:
    """One tensor's bytes. ``base`` is 16-byte aligned and at or below ``start``; views count from it.

    ``undefined``: bits that a kernel left undefined, None as long as none did.
    """

    def __init__(self, start: int, size: int, name: str) -> None:
        self.start, self.end, self.name = start, start + size, name
        self.base = start & ~15
        length = -(-(self.end - self.base) // 16) * 16
        self.u8 = np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(self.base))
        self.views: dict[int, Array] = {n: self.u8.view(UNSIGNED[8 * n]) for n in (1, 2, 4, 8)}
        self.undefined: UndefinedBytes | None = None

    def bits(self) -> UndefinedBytes:
        """``undefined``, made now if need be."""
        if self.undefined is None:
            self.undefined = UndefinedBytes(len(self.u8), undefined=False)
        return self.undefined


class GlobalMemory:
    """Regions sorted by address."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self._starts: list[int] = []

    def add(self, start: int, size: int, name: str) -> None:
        """Overlapping or touching tensors (views of one storage) become one region."""
        if size <= 0:
            return
        end = start + size
        for region in [old for old in self.regions if old.start < end and start < old.end]:
            start, end = min(start, region.start), max(end, region.end)
            name = region.name
            self.regions.remove(region)
        self.regions.append(Region(start, end - start, name))
        self.regions.sort(key=lambda region: region.start)
        self._starts = [region.start for region in self.regions]

    def find(self, low: int, high: int, what: str) -> Region:
        """The region that holds [low, high). Raises ``IllegalAccess``."""
        at = bisect.bisect_right(self._starts, low) - 1
        if at >= 0 and high <= self.regions[at].end:
            return self.regions[at]
        if low >> 48 == MODULE_WINDOW >> 48:
            raise Unsupported(f"{what} touches a global variable of the module")
        raise IllegalAccess(f"{what} touches global {low:#x}..{high:#x}{self._nearest(low)}")

    def _nearest(self, address: int) -> str:
        if not self.regions:
            return "; no tensor was passed"
        region = min(self.regions, key=lambda item: min(abs(item.start - address), abs(item.end - address)))
        if address < region.start:
            return f", {region.start - address} bytes before {region.name}"
        return f", {address - region.end} bytes behind the end of {region.name} ({region.end - region.start} bytes)"


def load_param(w: Warp, address: int, size: int, count: int) -> list[int]:
    data = w.machine.param_bytes
    at = address - PARAM_WINDOW
    if not 0 <= at <= len(data) - size * count:
        raise IllegalAccess(
            f"ld.param touches parameter bytes {at}..{at + size * count}, there are {len(data)}"
        )
    return [int.from_bytes(data[at + size * n : at + size * (n + 1)], "little") for n in range(count)]


def _check_alignment(address: Value, span: int, what: str) -> None:
    low = address & (span - 1)
    if low.any() if type(low) is ndarray else low:
        raise IllegalAccess(f"{what} is not aligned to {span} bytes")


def _locate(w: Warp, address: Array, span: int, mask: int, what: str) -> tuple[Region, Array]:
    """(region, byte positions of the active lanes in it)."""
    active = address if mask == FULL else address[lane_flags(mask)]
    _check_alignment(active, span, what)
    region = w.machine.memory.find(int(active.min()), int(active.max()) + span, what)
    return region, (active - np.uint64(region.base)).astype(np.int64)


def load_global(
    w: Warp, address: Value, size: int, count: int, mask: int, site: int, order: str, scope: str
) -> list[Value]:
    w.site = site
    span = size * count
    if isinstance(address, int):
        if address >= PARAM_WINDOW:
            return list(load_param(w, address, size, count))
        _check_alignment(address, span, "ld.global")
        region = w.machine.memory.find(address, address + span, "ld.global")
        if w.races is not None:
            w.races.global_read(w, region, address - region.base, span, order, scope, mask, site)
        if region.undefined is not None:
            load_bits(w, region.undefined, region.name, address - region.base, size, count, mask, site)
        first = (address - region.base) // size
        return region.views[size][first : first + count].tolist()
    region, at = _locate(w, address, span, mask, "ld.global")
    if w.races is not None:
        w.races.global_read(w, region, at, span, order, scope, mask, site)
    if mask != FULL:
        full = np.full(32, at[0])
        full[lane_flags(mask)] = at
        at = full
    if region.undefined is not None:
        load_bits(w, region.undefined, region.name, at, size, count, mask, site)
    at //= size
    view = region.views[size]
    return [view[at + n] for n in range(count)]


def store_global(
    w: Warp,
    address: Value,
    size: int,
    values: tuple[Value, ...],
    mask: int,
    site: int,
    order: str,
    scope: str,
) -> None:
    w.site = site
    w.machine.global_version += 1
    span = size * len(values)
    if isinstance(address, int):
        _check_alignment(address, span, "st.global")
        region = w.machine.memory.find(address, address + span, "st.global")
        at: Value = address - region.base
        last = 1 << (mask.bit_length() - 1)
        lanes: list[Value] = [first_lane(value, last) for value in values]
    else:
        region, at = _locate(w, address, span, mask, "st.global")
        flags = lane_flags(mask)
        lanes = [value if type(value) is not ndarray or mask == FULL else value[flags] for value in values]
    if w.races is not None:
        w.races.global_write(w, region, at, span, order, scope, mask, site)
    if w.storing is not None or region.undefined is not None:
        store_bits(w, region.bits(), at, size, len(values), mask, site)
    view, at = region.views[size], at // size
    for number, value in enumerate(lanes):
        view[at + number] = value


def _is_shared(address: Value, mask: int) -> bool:
    return first_lane(address, mask) >> 60 == SHARED_WINDOW >> 60


def _to_shared(address: Value) -> Value:
    return (address & 0xFFFFFFFF).astype(np.uint32) if type(address) is ndarray else address & 0xFFFFFFFF


def load_generic(
    w: Warp, address: Value, size: int, count: int, mask: int, site: int, order: str, scope: str
) -> list[Value]:
    if _is_shared(address, mask):
        return load_shared(w, _to_shared(address), size, count, mask, site, order, scope)
    if first_lane(address, mask) >> 60 == LOCAL_WINDOW >> 60:
        return list(load_local(w, address, size, count, mask, site))
    return load_global(w, address, size, count, mask, site, order, scope)


def store_generic(
    w: Warp,
    address: Value,
    size: int,
    values: tuple[Value, ...],
    mask: int,
    site: int,
    order: str,
    scope: str,
) -> None:
    if _is_shared(address, mask):
        return store_shared(w, _to_shared(address), size, values, mask, site, order, scope)
    if first_lane(address, mask) >> 60 == LOCAL_WINDOW >> 60:
        return store_local(w, address, size, values, mask, site)
    store_global(w, address, size, values, mask, site, order, scope)
