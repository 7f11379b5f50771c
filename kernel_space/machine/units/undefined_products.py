"""What undefined operands of ``tcgen05.mma`` and ``wgmma`` leave in the accumulator: whole rows and columns of it.

An undefined byte in a row of A makes that row of D undefined, one in a row of B that column of D. Without
accumulation the old contents of D do not matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kernel_space.machine.units.tensor_core import (
    K_BYTES,
    footprint,
    lanes_of,
    scale_b_quarters,
    scale_quarters,
    smem_descriptor,
    used_scales,
)
from kernel_space.machine.values.lanes import FULL, UNSIGNED, Array
from kernel_space.machine.values.packed_operands import PACKED
from kernel_space.machine.values.undefined import Birth, where

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Cta, Warp
    from kernel_space.machine.units.tensor_core import Shape
    from kernel_space.machine.units.tensor_pipe import Mma

READER = "by the tensor pipe"
Flags = NDArray[np.bool_]


class Rows:
    """``flags`` of rows that are undefined, gathered operand by operand; ``birth`` of the first."""

    def __init__(self, count: int) -> None:
        self.flags: Flags = np.zeros(count, bool)
        self.birth: Birth | None = None

    def add(self, flags: Flags, birth: Birth, at: int = 0) -> None:
        self.flags[at : at + len(flags)] |= flags
        self.birth = self.birth or birth


def product_bits(parts: list[Mma]) -> list[tuple[Cta, Array | None, Birth | None]]:
    """Per CTA: undefined words of the product of a group, [N, rows of the CTA], None where all are defined."""
    first = parts[0]
    b = Rows(first.shape.n)
    for part in parts:
        _add_b(b, part)
    found: list[tuple[Cta, Array | None, Birth | None]] = []
    for number, cta in enumerate(first.ctas):
        a = Rows(first.shape.m // first.group)
        for part in parts:
            _add_a(a, part, number)
        birth = b.birth or a.birth
        words = None
        if birth is not None:
            words = np.where(b.flags[:, None] | a.flags[None, :], np.uint32(FULL), np.uint32(0))
        found.append((cta, words, birth))
    return found


def _add_b(b: Rows, part: Mma) -> None:
    shape = part.shape
    rows = shape.n // len(part.ctas)
    for number, cta in enumerate(part.ctas):
        _add_shared(b, cta, part.b, rows, shape.b_mn_major, shape, shape.b_format, number * rows)
        if part.scales is not None:
            for at, quarters in enumerate(scale_b_quarters(shape, part.group)):
                count = shape.n // len(scale_b_quarters(shape, part.group))
                _add_scales(b, cta, part, 1, count, shape.scale_b_id, quarters, at * count)


def _add_a(a: Rows, part: Mma, number: int) -> None:
    shape, cta = part.shape, part.ctas[number]
    rows = shape.m // part.group
    if part.a_in_tmem:
        undefined, column = cta.tmem.undefined, part.a & 0xFFFF
        assert undefined is not None
        bits = undefined.words[column : column + K_BYTES // 4, lanes_of(shape.m, part.group)]
        if np.count_nonzero(bits):
            a.add(np.asarray(bits.any(axis=0)), undefined.birth(column, f"TMEM{cta.suffix}", READER))
    else:
        _add_shared(a, cta, part.a, rows, shape.a_mn_major, shape, shape.a_format, 0)
    if part.scales is not None:
        _add_scales(a, cta, part, 0, rows, shape.scale_a_id)


def _add_shared(
    found: Rows, cta: Cta, bits: int, rows: int, mn_major: bool, shape: Shape, form: str, at: int
) -> None:
    """An operand in shared memory. Of packed groups of 16 bytes the padding does not count."""
    undefined = cta.smem.undefined
    assert undefined is not None
    base, chunks = footprint(smem_descriptor(bits), rows, mn_major, shape.size)
    words = undefined.views[8].reshape(-1, 2)[base + chunks]
    if not np.count_nonzero(words):
        return
    if mn_major:
        elements = words.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[shape.size])
        flags = elements.reshape(K_BYTES // shape.size, rows).any(axis=0)
    else:
        meant = 2 * PACKED.get(form, 8) if shape.kind.endswith("f8f6f4") else 16
        flags = words.view(np.uint8).reshape(rows, 2, 16)[:, :, :meant].any(axis=(1, 2))
    if np.count_nonzero(flags):
        chunk = int((base + chunks).reshape(-1)[np.argmax(words.reshape(-1, 2).any(axis=1))])
        found.add(flags, chunk_birth(cta, chunk), at)


def chunk_birth(cta: Cta, chunk: int, reader: str = "by the tensor pipe") -> Birth:
    """Of the first undefined byte of a chunk of 16 bytes."""
    undefined = cta.smem.undefined
    assert undefined is not None
    offset = 16 * chunk + int(np.argmax(undefined.u8[16 * chunk : 16 * chunk + 16] != 0))
    trail = undefined.trail(offset)
    return (
        Birth(f"SMEM{cta.suffix} offset {offset:#x}, never written", reader) if trail is None else trail.birth
    )


def _add_scales(
    found: Rows, cta: Cta, part: Mma, which: int, rows: int, number: int,
    among: tuple[int, ...] = (0, 1, 2, 3), at: int = 0,
) -> None:  # fmt: skip
    assert part.scales is not None and cta.tmem.undefined is not None
    address = part.scales[which]
    quarters = scale_quarters(cta.tmem.undefined.words, address, rows)
    either = np.bitwise_or.reduce(quarters[:, among], axis=1)
    bits = used_scales(either, rows, part.block, number, part.shape.kind)
    if np.count_nonzero(bits):
        birth = cta.tmem.undefined.birth(address & 0xFFFF, f"TMEM{cta.suffix}", READER)
        found.add(np.asarray(bits.any(axis=1)), birth, at)


def note_rows(w: Warp, operand: str, offsets: Array, rows: int, site: int, *, mn_size: int = 0) -> None:
    """Undefined rows of an operand of ``wgmma``; ``offsets`` of its chunks, row after row, or of ``rows`` elements of
    ``mn_size`` bytes for each K.
    """
    undefined = w.cta.smem.undefined
    assert undefined is not None
    words: Any = undefined.views[8].reshape(-1, 2)[offsets >> 4]
    if np.count_nonzero(words):
        chunk = int(offsets[np.argmax(words.any(axis=1))]) >> 4
        flags = words.reshape(rows, -1).any(axis=1)
        if mn_size:
            flags = words.view(UNSIGNED[8 * mn_size]).reshape(-1, rows).any(axis=0)
        w.operand_rows[operand] = (flags, chunk_birth(w.cta, chunk, where(w, site)))
