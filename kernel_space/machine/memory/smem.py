"""Shared memory of a CTA and the generic-proxy accesses to it: ld, st, ldmatrix, stmatrix.

A 32-bit shared address is ``(cluster_ctarank << 24) | offset`` (measured on Hopper). Offsets below 0x400 are reserved.
Memory starts out as 0xFF bytes: NaN in every floating format that has one, so that unwritten data shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from kernel_space.machine.memory.undefined import (
    UndefinedBytes,
    birth_in,
    carry,
    load_bits,
    store_bits,
    store_rows,
)
from kernel_space.machine.values.faults import IllegalAccess, ProtocolError
from kernel_space.machine.values.lanes import (
    FULL,
    UNSIGNED,
    Array,
    Value,
    blend,
    first_lane,
    lane_flags,
    lane_mask,
    ndarray,
    spread,
)

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Cta, Warp

FIRST_OFFSET = 0x400
OFFSET_MASK = 0xFFFFFF


class Smem:
    """``limit``: first offset that is not ours. Views of one buffer by element size; ``chunks`` are 16 bytes.

    ``undefined``: the bits that hold nothing meant, where ``tracks``.
    """

    def __init__(self, limit: int, *, tracks: bool = False) -> None:
        self.limit = limit
        size = -(-limit // 1024) * 1024
        self.chunks = np.empty(size // 16, np.complex128)
        self.u8 = self.chunks.view(np.uint8)
        self.u8[:] = 0xFF
        self.views: dict[int, Array] = {n: self.u8.view(UNSIGNED[8 * n]) for n in (1, 2, 4, 8)}
        self.undefined = UndefinedBytes(size, undefined=True) if tracks else None

    def check(self, low: int, high: int, alignment: int, what: str) -> None:
        """Raises ``IllegalAccess`` unless [low, high) lies inside."""
        if low < FIRST_OFFSET or high > self.limit:
            raise IllegalAccess(
                f"{what} touches shared offsets {low:#x}..{high:#x}; this CTA has {FIRST_OFFSET:#x}..{self.limit:#x}"
            )
        if low % alignment:
            raise IllegalAccess(f"{what} at shared offset {low:#x} is not aligned to {alignment} bytes")


def _lanes_by_cta(address: Array, mask: int) -> list[int]:
    """``mask``, or one mask per CTA of the cluster that its lanes mean."""
    ranks = address >> 24
    if (ranks == ranks[0]).all():
        return [mask]
    found = {int(rank) for rank in ranks[lane_flags(mask)]}
    return [lane_mask(ranks == rank) & mask for rank in sorted(found)]


def _split_address(w: Warp, address: Array, mask: int) -> tuple[Cta, Array]:
    """(the CTA meant by the active lanes, offsets). The lanes of a matrix move all mean one CTA."""
    ranks = address >> 24
    rank = first_lane(ranks, mask)
    flags = lane_flags(mask)
    if not (ranks[flags] == rank).all():
        raise ProtocolError("one shared access goes to several CTAs of the cluster")
    return w.cta.peer(rank), (address & OFFSET_MASK).astype(np.int64)


def load_shared(
    w: Warp, address: Value, size: int, count: int, mask: int, site: int, order: str = "weak", scope: str = ""
) -> list[Value]:
    """``count`` values of ``size`` bytes from each lane's address."""
    w.site = site
    if isinstance(address, int):
        cta, offset = w.cta.peer(address >> 24), address & OFFSET_MASK
        cta.smem.check(offset, offset + size * count, size * count, "ld.shared")
        if w.races is not None:
            _note_read(w, cta, offset, size * count, order, scope, mask, site)
        if cta.smem.undefined is not None:
            load_bits(w, cta.smem.undefined, f"SMEM{cta.suffix}", offset, size, count, mask, site)
        first = offset // size
        return cta.smem.views[size][first : first + count].tolist()
    parts = _lanes_by_cta(address, mask)
    if len(parts) > 1:
        loaded = [load_shared(w, address, size, count, part, site, order, scope) for part in parts]
        merged = loaded[0]
        for part, values in zip(parts[1:], loaded[1:], strict=True):
            merged = [blend(new, old, part, 8 * size) for new, old in zip(values, merged, strict=True)]
        return merged
    cta, offsets = _split_address(w, address, mask)
    active = offsets if mask == FULL else offsets[lane_flags(mask)]
    _check_lanes(cta, active, size * count, "ld.shared")
    if w.races is not None:
        _note_read(w, cta, active, size * count, order, scope, mask, site)
    if mask != FULL:
        offsets = np.where(lane_flags(mask), offsets, active[0])
    if cta.smem.undefined is not None:
        load_bits(w, cta.smem.undefined, f"SMEM{cta.suffix}", offsets, size, count, mask, site)
    at = offsets // size
    view = cta.smem.views[size]
    return [view[at + n] for n in range(count)]


def _note_read(w: Warp, cta: Cta, at: Value, size: int, order: str, scope: str, mask: int, site: int) -> None:
    if order in ("weak", "nc"):
        w.races.lanes_read(w, cta, at, size, mask, site)
        return w.races.shared_read(w, cta, at, size, site, mask)
    w.races.shared_strong(w, cta, at, size, order, scope, mask, site, "load")


def _note_write(
    w: Warp, cta: Cta, at: Value, size: int, order: str, scope: str, mask: int, site: int
) -> None:
    if order == "weak":
        w.races.lanes_wrote(w, cta, at, size, mask, site)
        return w.races.shared_write(w, cta, at, size, mask, site)
    w.races.shared_strong(w, cta, at, size, order, scope, mask, site, "store")


def store_shared(
    w: Warp, address: Value, size: int, values: tuple[Value, ...], mask: int, site: int, order: str = "weak",
    scope: str = "",
) -> None:  # fmt: skip
    """Where lanes write to one place the highest lane wins."""
    w.site = site
    span = size * len(values)
    if isinstance(address, int):
        cta, offset = w.cta.peer(address >> 24), address & OFFSET_MASK
        cta.smem.check(offset, offset + span, span, "st.shared")
        if w.races is not None:
            _note_write(w, cta, offset, span, order, scope, mask, site)
        if cta.smem.undefined is not None:
            store_bits(w, cta.smem.undefined, offset, size, len(values), mask, site)
        view, last = cta.smem.views[size], 1 << (mask.bit_length() - 1)
        for number, value in enumerate(values):
            view[offset // size + number] = first_lane(value, last)
        return
    parts = _lanes_by_cta(address, mask)
    if len(parts) > 1:
        for part in parts:
            store_shared(w, address, size, values, part, site, order, scope)
        return
    cta, offsets = _split_address(w, address, mask)
    flags = lane_flags(mask)
    active = offsets if mask == FULL else offsets[flags]
    _check_lanes(cta, active, span, "st.shared")
    if w.races is not None:
        _note_write(w, cta, active, span, order, scope, mask, site)
    if cta.smem.undefined is not None:
        store_bits(w, cta.smem.undefined, active, size, len(values), mask, site)
    lanes = [value if type(value) is not ndarray or mask == FULL else value[flags] for value in values]
    if span == 16 and size == 4:
        block = np.empty((len(active), 4), np.uint32)
        for number, value in enumerate(lanes):
            block[:, number] = value
        cta.smem.chunks[active >> 4] = block.view(np.complex128)[:, 0]
        return
    at, view = active // size, cta.smem.views[size]
    for number, value in enumerate(lanes):
        view[at + number] = value


def _check_lanes(cta: Cta, offsets: Array, span: int, what: str) -> None:
    low, high = int(offsets.min()), int(offsets.max())
    cta.smem.check(low, high + span, 1, what)
    if (offsets & (span - 1)).any():
        bad = int(offsets[(offsets & (span - 1)) != 0][0])
        raise IllegalAccess(f"{what} at shared offset {bad:#x} is not aligned to {span} bytes")


def _matrix_rows(w: Warp, address: Value, count: int, mask: int, what: str) -> tuple[Cta, Array]:
    """Offsets of the 8 rows of each of ``count`` 8x8 matrices: lane 8 m + r points at row r of matrix m."""
    if mask != FULL:
        raise ProtocolError(f"{what} needs all 32 lanes")
    cta, offsets = _split_address(w, spread(address, 32), mask)
    rows = offsets[: 8 * count]
    _check_lanes(cta, rows, 16, what)
    return cta, rows


def store_matrix(
    w: Warp, address: Value, values: tuple[Value, ...], transposed: bool, byte: bool, mask: int, site: int
) -> None:
    """``stmatrix.m8n8.b16``: lane t holds elements (t / 4, 2 (t % 4)) and the next one of each matrix."""
    w.site = site
    w.meetings += 1
    cta, rows = _matrix_rows(w, address, len(values), mask, "stmatrix")
    if byte:
        if not transposed:
            raise ProtocolError("stmatrix.m16n8 needs .trans")
        return _store_bytes(w, cta, rows, values, site)
    if w.races is not None:
        w.races.shared_write(w, cta, rows, 16, mask, site)
        w.races.matrix_written(w, cta, rows)
    cta.smem.chunks[rows >> 4] = _matrix_chunks([spread(value, 32) for value in values], transposed)
    if cta.smem.undefined is not None:
        bits = _stored_words(w)
        store_rows(w, cta.smem.undefined, rows, _matrix_chunks(bits, transposed) if bits else None, site)


def _matrix_chunks(words: list[Array], transposed: bool) -> Array:
    """Rows of 8x8 matrices of 16 bits, as 16-byte chunks."""
    matrices = np.stack(words).view(np.uint16).reshape(len(words), 8, 8)
    if transposed:
        matrices = matrices.transpose(0, 2, 1)
    return np.ascontiguousarray(matrices).reshape(-1, 8).view(np.complex128)[:, 0]


def _stored_words(w: Warp) -> list[Array]:
    """The undefined bits of what is being stored, in words of 32 bits; none where all is defined."""
    return [] if w.storing is None else [bits.astype(np.uint32) for bits in w.storing.items]


def _store_bytes(w: Warp, cta: Cta, rows: Array, values: tuple[Value, ...], site: int) -> None:
    """``stmatrix.m16n8.trans.b8``: byte 2h + e of lane t is row t / 4 + 8h, column 2 (t % 4) + e.

    Columns are stored.
    """
    if w.races is not None:
        w.races.shared_write(w, cta, rows, 16, FULL, site)
        w.races.matrix_written(w, cta, rows)
    cta.smem.chunks[rows >> 4] = _byte_chunks([spread(value, 32) for value in values])
    if cta.smem.undefined is not None:
        bits = _stored_words(w)
        store_rows(w, cta.smem.undefined, rows, _byte_chunks(bits) if bits else None, site)


def _byte_chunks(words: list[Array]) -> Array:
    held = np.stack(words).view(np.uint8).reshape(len(words), 8, 4, 2, 2)
    columns = np.ascontiguousarray(held.transpose(0, 2, 4, 3, 1)).reshape(len(words) * 8, 16)
    return columns.view(np.complex128)[:, 0]


def load_matrix(w: Warp, address: Value, count: int, transposed: bool, mask: int, site: int) -> list[Array]:
    """``ldmatrix.m8n8.b16``, the inverse of ``store_matrix``."""
    return _load_rows(w, address, count, lambda rows: _matrix_words(rows, count, transposed), mask, site)


def load_byte_matrix(w: Warp, address: Value, count: int, mask: int, site: int) -> list[Array]:
    """``ldmatrix.m16n16.trans.b8``: lane 16 m + r points at row r of matrix m. Its register h in lane t holds column
    t / 4 + 8 h, rows 4 (t % 4) to 4 (t % 4) + 3.
    """
    return _load_rows(w, address, 2 * count, _byte_words, mask, site)


def _load_rows(
    w: Warp, address: Value, eights: int, words: Callable[[Array], list[Array]], mask: int, site: int
) -> list[Array]:
    """What ``words`` makes of ``eights`` times eight rows of 16 bytes."""
    w.site = site
    cta, rows = _matrix_rows(w, address, eights, mask, "ldmatrix")
    if w.races is not None:
        w.races.matrix_read(w, cta, rows, site)
        w.races.shared_read(w, cta, rows, 16, site)
    w.meetings += 1
    if cta.smem.undefined is not None:
        _matrix_bits(w, cta, rows, words, site)
    return words(cta.smem.chunks[rows >> 4])


def _byte_words(chunks: Array) -> list[Array]:
    columns = chunks.view(np.uint8).reshape(-1, 16, 16).transpose(0, 2, 1)
    return list(np.ascontiguousarray(columns).view(np.uint32).reshape(-1, 32))


def _matrix_words(chunks: Array, count: int, transposed: bool) -> list[Array]:
    matrices = chunks.view(np.uint16).reshape(count, 8, 8)
    if transposed:
        matrices = matrices.transpose(0, 2, 1)
    return list(np.ascontiguousarray(matrices).view(np.uint32).reshape(count, 32))


def _matrix_bits(w: Warp, cta: Cta, rows: Array, words: Callable[[Array], list[Array]], site: int) -> None:
    memory = cta.smem.undefined
    assert memory is not None
    chunks = memory.chunks[rows >> 4]
    found = chunks.view(np.uint64).reshape(-1, 2).any(axis=1)
    if np.count_nonzero(found):
        items = [register.astype(np.uint64) for register in words(chunks)]
        first = int(rows[np.argmax(found)])
        carry(w, items, birth_in(w, memory, f"SMEM{cta.suffix}", first, site))
