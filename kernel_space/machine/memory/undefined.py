"""Which bits of a memory are undefined: a copy of its layout, in which a set bit is an undefined one.

Shared and tensor memory start out undefined, global memory defined. A store of defined data clears bits, one of
undefined data brings its own along with a note of where they were born. See ``values/undefined.py`` for registers.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from kernel_space.machine.values.lanes import FULL, LANES, UNSIGNED, Array, lane_flags, ndarray
from kernel_space.machine.values.undefined import Birth, Bits, Carried, all_bits, birth_at, where

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Warp


@dataclasses.dataclass(frozen=True, slots=True)
class Trail:
    """An undefined value that lies in memory: where it was born, and the store that put it there."""

    birth: Birth
    stored: str


class Trails:
    """``numbers``: per cell, which of ``known`` explains its undefined bits; 0 for bits that nobody ever wrote."""

    def __init__(self, cells: int) -> None:
        self.numbers = np.zeros(cells, np.int32)
        self.known: list[Trail | None] = [None]
        self._number: dict[tuple[int, str], int] = {}

    def note(self, cells: Any, birth: Birth, stored: str) -> None:
        key = (id(birth), stored)
        number = self._number.get(key)
        if number is None:
            number = self._number[key] = len(self.known)
            self.known.append(Trail(birth, stored))
        self.numbers[cells] = number

    def of(self, cell: int) -> Trail | None:
        return self.known[self.numbers[cell]]


class UndefinedBytes:
    """Laid out as ``Smem`` and ``Region`` are: ``u8``, ``views`` by element size, ``chunks`` of 16 bytes."""

    def __init__(self, size: int, *, undefined: bool) -> None:
        self.chunks = np.empty(-(-size // 16), np.complex128)
        self.u8 = self.chunks.view(np.uint8)
        self.u8[:] = 0xFF if undefined else 0
        self.views: dict[int, Array] = {n: self.u8.view(UNSIGNED[8 * n]) for n in (1, 2, 4, 8)}
        self.trails: Trails | None = None

    def note(self, low: int, high: int, birth: Birth, stored: str) -> None:
        """The undefined bytes among [low, high) were put there by the store ``stored``."""
        words = np.arange(low >> 2, (high + 3) >> 2)
        self.note_words(words, birth, stored)

    def note_words(self, words: Any, birth: Birth, stored: str) -> None:
        if self.trails is None:
            self.trails = Trails(len(self.views[4]))
        self.trails.note(words, birth, stored)

    def trail(self, offset: int) -> Trail | None:
        return None if self.trails is None else self.trails.of(offset >> 2)

    def any(self, low: int, high: int) -> bool:
        return bool(np.count_nonzero(self.u8[low:high]))


# -- plain loads and stores --------------------------------------------------------------------------------------------
def load_bits(
    w: Warp,
    memory: UndefinedBytes,
    name: str,
    at: Any,
    size: int,
    count: int,
    mask: int,
    site: int,
    grain: int = 8,
) -> None:
    """Undefined bits of ``count`` elements at byte ``at`` (one, or of 32 lanes) become ``w.loaded``.

    ``grain``: bytes to which accesses of as many or more are aligned.
    """
    if type(at) is not ndarray:
        if not memory.any(at, at + size * count):
            return
        part = memory.views[size][at // size : at // size + count].astype(np.uint64)
        first, items = at + int(np.argmax(part != 0)) * size, [np.full(LANES, bits) for bits in part]
    else:
        wide = min(size * count, grain)
        found = [memory.views[wide][(at + step) // wide] for step in range(0, size * count, wide)]
        if not any(np.count_nonzero(bits) for bits in found):
            return
        view, at_items = memory.views[size], at // size
        items = [view[at_items + n].astype(np.uint64) * lane_flags(mask) for n in range(count)]
        bad = next((n for n, bits in enumerate(items) if np.count_nonzero(bits)), None)
        if bad is None:
            return
        first = int(at[np.argmax(items[bad] != 0)]) + bad * size
    carry(w, items, birth_in(w, memory, name, first, site))


def carry(w: Warp, items: list[Bits], birth: Birth) -> None:
    """Several loads of one instruction (to several CTAs) add up."""
    if w.loaded is not None:
        items = [old | new for old, new in zip(w.loaded.items, items, strict=True)]
    w.loaded = Carried(items, birth)


def birth_in(w: Warp, memory: UndefinedBytes, name: str, offset: int, site: int) -> Birth:
    trail = memory.trail(offset)
    if trail is not None:
        return trail.birth
    return birth_at(w, site, f"{name} offset {offset:#x}, never written")


def store_bits(
    w: Warp, memory: UndefinedBytes, at: Any, size: int, count: int, mask: int, site: int, grain: int = 8
) -> None:
    """What a store of ``count`` elements of ``size`` bytes leaves at byte ``at``: one, or of the active lanes."""
    if w.storing is None:
        wide = min(size * count, grain)
        for step in range(0, size * count, wide):
            memory.views[wide][(at + step) // wide] = 0
        return
    scalar = type(at) is not ndarray
    lanes: Any = mask.bit_length() - 1 if scalar else slice(None) if mask == FULL else lane_flags(mask)
    for number, bits in enumerate(w.storing.items):
        memory.views[size][at // size + number] = bits[lanes] & all_bits(8 * size)
    words = (
        (at + np.arange(0, max(size * count, 4), 4))
        if scalar
        else at[:, None] + np.arange(0, size * count, 4)
    )
    memory.note_words(words.reshape(-1) >> 2, w.storing.birth, where(w, site))


# -- matrices and copies -----------------------------------------------------------------------------------------------
def store_rows(w: Warp, memory: UndefinedBytes, rows: Array, chunks: Array | None, site: int) -> None:
    """``stmatrix``: ``chunks`` of undefined bits at byte offsets ``rows``; None: all are defined."""
    if chunks is None or w.storing is None:
        memory.chunks[rows >> 4] = 0
        return
    memory.chunks[rows >> 4] = chunks
    words = (rows[:, None] + np.arange(0, 16, 4)).reshape(-1) >> 2
    memory.note_words(words, w.storing.birth, where(w, site))


def copy_bytes(
    target: UndefinedBytes,
    at: int,
    size: int,
    source: UndefinedBytes | None,
    come: int,
    stored: str,
    name: str,
) -> None:
    """A copy of ``size`` bytes, done by ``stored``; ``source`` None: of defined ones."""
    if source is None or not source.any(come, come + size):
        target.u8[at : at + size] = 0
        return
    bits = source.u8[come : come + size]
    target.u8[at : at + size] = bits
    target.note(at, at + size, copied_birth(source, come + int(np.argmax(bits != 0)), stored, name), stored)


def copied_birth(source: UndefinedBytes, offset: int, stored: str, name: str) -> Birth:
    trail = source.trail(offset)
    return Birth(f"{name} offset {offset:#x}, never written", stored) if trail is None else trail.birth


# -- tensor memory -----------------------------------------------------------------------------------------------------
class UndefinedWords:
    """Laid out as the ``words`` of ``Tmem``, [column, lane]. ``births``: of the last undefined bits of a column."""

    def __init__(self, columns: int, lanes: int) -> None:
        self.words = np.full((columns, lanes), FULL, np.uint32)
        self.births: dict[int, Birth] = {}

    def forget(self, column: int, count: int) -> None:
        """Columns begin a new life."""
        self.words[column : column + count] = FULL
        self.note(column, count, None)

    def note(self, column: int, count: int, birth: Birth | None) -> None:
        for number in range(column, column + count):
            if birth is None:
                self.births.pop(number, None)
            else:
                self.births[number] = birth

    def birth(self, column: int, what: str, reader: str) -> Birth:
        found = self.births.get(column)
        return Birth(f"{what} column {column}, never written", reader) if found is None else found
