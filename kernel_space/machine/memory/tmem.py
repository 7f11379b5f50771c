"""Tensor memory of one SM: 128 lanes x 512 columns of 32 bits, allocation, ld and st. PTX ISA 9.7.16.

Address = lane << 16 | column. Stored as [column, lane]: an accumulator is then one contiguous block. Memory starts
out as 0xFFFFFFFF (NaN). Warp w of a CTA may touch lanes 32 (w % 4) .. + 31 only.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from kernel_space.machine.memory.smem import OFFSET_MASK
from kernel_space.machine.memory.undefined import UndefinedWords, carry
from kernel_space.machine.values.faults import IllegalAccess, ProtocolError, Unsupported
from kernel_space.machine.values.lanes import FULL, Array, Value, spread
from kernel_space.machine.values.undefined import Carried, where

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Cta, Warp

LANES, COLUMNS = 128, 512
ALLOCATIONS = (32, 64, 128, 256, 512)


class Tmem:
    """``owner[c]`` is the base of the allocation that column c belongs to, or -1. ``undefined``: where ``tracks``."""

    def __init__(self, *, tracks: bool = False) -> None:
        self.words = np.full((COLUMNS, LANES), 0xFFFFFFFF, np.uint32)
        self.f32 = self.words.view(np.float32)
        self.undefined = UndefinedWords(COLUMNS, LANES) if tracks else None
        self.owner = np.full(COLUMNS, -1, np.int64)
        self.permit = True
        self.waiters: list[Warp] = []
        self.asked = 0
        self.granted = -1
        self.clock: Any = None

    def free_base(self, columns: int) -> int:
        """First free aligned block, or -1."""
        for base in range(0, COLUMNS, columns):
            if (self.owner[base : base + columns] < 0).all():
                return base
        return -1

    def wake_waiters(self) -> None:
        waiters, self.waiters = self.waiters, []
        for warp in waiters:
            warp.wake()

    def close(self) -> None:
        """Its CTA ends: every allocation must have been freed."""
        left = int((self.owner >= 0).sum())
        if left:
            raise ProtocolError(f"a CTA ends with {left} TMEM columns still allocated")

    def check(self, column: int, count: int, what: str) -> None:
        """Raises ``IllegalAccess`` unless the columns are allocated."""
        if column < 0 or column + count > COLUMNS:
            raise IllegalAccess(
                f"{what} touches TMEM columns {column}..{column + count}, there are {COLUMNS}"
            )
        if (self.owner[column : column + count] < 0).any():
            raise IllegalAccess(
                f"{what} touches TMEM columns {column}..{column + count}, not all of them are allocated"
            )


def tmem_alloc(w: Warp, target: int, columns: int, group: int, site: int) -> bool:
    """First fit of a power of two of at least 32 columns; writes the base address to shared memory. True: sleep.

    Under cta_group::2 the allocation happens in both CTAs of the pair at once, when both have asked.
    """
    w.site = site
    tmem, holder, place = w.cta.tmem, w.cta.peer(target >> 24), target & OFFSET_MASK
    holder.smem.check(place, place + 4, 4, "tcgen05.alloc")
    if columns not in ALLOCATIONS:
        raise ProtocolError(f"tcgen05.alloc needs 32, 64, 128, 256 or 512 columns, got {columns}")
    if not tmem.permit:
        raise ProtocolError("tcgen05.alloc after relinquish_alloc_permit")
    ctas = [w.cta] if group == 1 else [w.cta, w.cta.peer(w.cta.rank ^ 1)]
    if tmem.asked != columns and w.races is not None:
        w.races.alloc_asked(w, tmem)
    tmem.asked = columns
    if tmem.granted < 0:
        _grant(w, ctas, columns)
    if tmem.granted < 0:
        tmem.waiters.append(w)
        w.sleep(("alloc", tmem, columns, site))
        return True
    base, tmem.granted, tmem.asked = tmem.granted, -1, 0
    if w.races is not None:
        w.races.shared_write(w, holder, place, 4, FULL, site)
        w.races.tmem_alloc(w, ctas)
    holder.smem.views[4][place >> 2] = base
    if holder.smem.undefined is not None:
        holder.smem.undefined.views[4][place >> 2] = 0
    return False


def _grant(w: Warp, ctas: list[Cta], columns: int) -> None:
    """Give every tensor memory its columns if all have asked and have room."""
    bases = [cta.tmem.free_base(columns) if cta.tmem.asked == columns else -1 for cta in ctas]
    if min(bases) < 0:
        return
    for cta, base in zip(ctas, bases, strict=True):
        cta.tmem.owner[base : base + columns] = base
        cta.tmem.granted = base
        if cta.tmem.undefined is not None:
            cta.tmem.undefined.forget(base, columns)
        if w.races is not None:
            w.races.tmem_granted(cta, base, columns)
    for cta in ctas:
        cta.tmem.wake_waiters()


def tmem_dealloc(w: Warp, address: int, columns: int, group: int, site: int) -> None:
    w.site = site
    tmem, base = w.cta.tmem, address & 0xFFFF
    if columns not in ALLOCATIONS:
        raise ProtocolError(f"tcgen05.dealloc needs 32, 64, 128, 256 or 512 columns, got {columns}")
    if base + columns > COLUMNS or (tmem.owner[base : base + columns] != base).any():
        raise ProtocolError(f"tcgen05.dealloc of {columns} columns at {base}: that is not one allocation")
    if w.races is not None:
        w.races.tmem_dealloc(w, base, columns, group, site)
    tmem.owner[base : base + columns] = -1
    tmem.wake_waiters()


def tmem_relinquish(w: Warp, site: int) -> None:
    w.site = site
    w.cta.tmem.permit = False


def tmem_wait(w: Warp, what: str, site: int) -> None:
    """Loads and stores of TMEM complete at issue here; the race checker notes the wait."""
    w.site = site
    if w.races is not None:
        w.races.tmem_wait(w, what)


@functools.cache
def _pattern(shape: str, count: int, split: int) -> tuple[Array, Array, int]:
    """(lane, column) of register i of thread t, both [registers, 32], and the number of columns covered."""
    t = np.arange(32)[None, :]
    if shape == "32x32b":
        i = np.arange(count)[:, None]
        return np.broadcast_to(t, (count, 32)), np.broadcast_to(i, (count, 32)), count
    if shape == "16x256b":
        i = np.arange(4 * count)[:, None]
        q, h, e = i // 4, i // 2 % 2, i % 2
        return 8 * h + t // 4, 8 * q + 2 * (t % 4) + e, 8 * count
    if shape == "16x128b":
        i = np.arange(2 * count)[:, None]
        q, h = i // 2, i % 2
        return 8 * h + t // 4, 4 * q + t % 4, 4 * count
    if shape == "16x64b":
        # Two columns per repetition: threads of a quad pair share rows, register i is column pair i.
        i = np.arange(count)[:, None]
        row = np.broadcast_to((t // 4) + 8 * (t % 4 // 2), (count, 32))
        return row, 2 * i + t % 2, 2 * count
    i = np.arange(count)[:, None]  # 16x32bx2
    half = t // 16
    return np.broadcast_to(t % 16, (count, 32)) + 0 * i, i + half * split, count + split


def _locate(
    w: Warp, address: int, shape: str, count: int, split: int, what: str
) -> tuple[Array, Array, int, int]:
    lane, column = address >> 16, address & 0xFFFF
    rows, columns, width = _pattern(shape, count, split)
    w.cta.tmem.check(column, width, what)
    highest = lane + (31 if shape == "32x32b" else 15)
    quarter = w.number % 4
    if lane // 32 != quarter or highest // 32 != quarter:
        raise IllegalAccess(
            f"{what}: warp {w.number} may touch TMEM lanes {32 * quarter}..{32 * quarter + 31}, got {lane}..{highest}"
        )
    return lane + rows, column + columns, lane, column


def tmem_load(w: Warp, address: int, shape: str, count: int, packs: bool, split: int, site: int) -> Array:
    """``tcgen05.ld``: [registers, 32 threads]."""
    w.site = site
    w.loads_tmem = True
    tmem = w.cta.tmem
    if packs:
        return _packed_load(w, address, shape, count, split, site)
    rows, columns, lane, column = _locate(w, address, shape, count, split, "tcgen05.ld")
    if w.races is not None:
        w.races.tmem_read(
            w, lane, 32 if shape == "32x32b" else 16, column, _pattern(shape, count, split)[2], site
        )
    cells: Any = (columns, rows)
    if shape == "32x32b":
        cells = (slice(column, column + count), slice(lane, lane + 32))
    if tmem.undefined is not None:
        _load_bits(w, tmem.undefined, cells, columns, site)
    return tmem.words[cells].copy()


def _load_bits(w: Warp, undefined: UndefinedWords, cells: Any, columns: Array, site: int) -> None:
    bits = undefined.words[cells]
    if not np.count_nonzero(bits):
        return
    register, thread = np.argwhere(bits)[0]
    column = int(np.broadcast_to(columns, bits.shape)[register, thread])
    birth = undefined.birth(column, f"TMEM{w.cta.suffix}", where(w, site))
    carry(w, list(bits.astype(np.uint64)), birth)


def _packed_load(w: Warp, address: int, shape: str, count: int, split: int, site: int) -> Array:
    """``.pack::16b``: two neighbouring columns' low halves in one register."""
    if shape != "32x32b":
        raise Unsupported("tcgen05.ld.pack::16b is modelled for 32x32b only")
    wide = tmem_load(w, address, shape, 2 * count, False, split, site)
    if w.loaded is not None:
        items = w.loaded.items
        packed = [
            low & np.uint64(0xFFFF) | (high & np.uint64(0xFFFF)) << np.uint64(16)
            for low, high in zip(items[0::2], items[1::2], strict=True)
        ]
        w.loaded = Carried(packed, w.loaded.birth)
    return (wide[0::2] & 0xFFFF) | wide[1::2] << 16


def tmem_store(
    w: Warp,
    address: int,
    shape: str,
    count: int,
    packs: bool,
    split: int,
    values: tuple[Value, ...],
    site: int,
) -> None:
    """``tcgen05.st``"""
    w.site = site
    data = np.stack([spread(value, 32) for value in values])
    if packs:
        if shape != "32x32b":
            raise Unsupported("tcgen05.st.unpack::16b is modelled for 32x32b only")
        data, count = _unpacked(data), 2 * count
    rows, columns, lane, column = _locate(w, address, shape, count, split, "tcgen05.st")
    if w.races is not None:
        w.races.tmem_write(
            w, lane, 32 if shape == "32x32b" else 16, column, _pattern(shape, count, split)[2], site
        )
    tmem = w.cta.tmem
    tmem.words[columns, rows] = data
    if tmem.undefined is not None:
        _store_bits(w, tmem.undefined, columns, rows, packs)


def _unpacked(words: Array) -> Array:
    """The halves of registers, [registers, 32], as words of their own."""
    return np.stack([words & 0xFFFF, words >> 16], axis=1).reshape(-1, 32)


def _store_bits(w: Warp, undefined: UndefinedWords, columns: Array, rows: Array, packs: bool) -> None:
    if w.storing is None:
        undefined.words[columns, rows] = 0
        return
    bits = np.stack(w.storing.items).astype(np.uint32)
    undefined.words[columns, rows] = _unpacked(bits) if packs else bits
    for column in np.unique(columns).tolist():
        undefined.note(column, 1, w.storing.birth)
