"""``wgmma.mma_async`` with A in registers or shared memory, a warp at a time. PTX ISA 9.7.15 (asynchronous
warpgroup level matrix).

A warp's 16 rows of A make its 16 rows of D, so nothing passes between the warps of a warpgroup. The product is made
when it is issued; that registers and operands belong to it until ``wgmma.wait_group`` is checked (``wgmma_order.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kernel_space.machine.units.undefined_products import note_rows
from kernel_space.machine.values.faults import Unsupported
from kernel_space.machine.values.floats import decode, encode, halves
from kernel_space.machine.values.lanes import LANES, Array, Value, spread

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Warp

_GROUP, _QUAD = np.arange(LANES) // 4, np.arange(LANES) % 4
_SPANS = {1: 128, 2: 64, 3: 32}  # layout field of the descriptor -> bytes of a swizzled row
_K = 16


def wgmma_registers(
    w: Warp,
    kind: str,
    columns: int,
    a: tuple[Value, ...],
    b: int,
    accumulate: int,
    c: tuple[Value, ...],
    site: int,
) -> tuple[Array, ...]:
    """D of this warp: A (4 registers) x B (K-major in shared memory, descriptor ``b``) + C where ``accumulate``."""
    w.site = site
    rows = np.zeros((16, _K))
    for number, word in enumerate(a):
        for e, half in enumerate(halves(spread(word, 32))):
            rows[_GROUP + number % 2 * 8, _QUAD * 2 + number // 2 * 8 + e] = decode(half, kind)
    return _product(w, kind, columns, rows, b, accumulate, c, site)


def wgmma_shared(
    w: Warp,
    kind: str,
    columns: int,
    a: int,
    b: int,
    accumulate: int,
    c: tuple[Value, ...],
    site: int,
) -> tuple[Array, ...]:
    """``wgmma_registers`` with the 64 rows of A in shared memory, K-major, descriptor ``a``; a warp has 16 of them."""
    w.site = site
    first = w.number % 4 * 16
    rows = _columns(w, kind, 64, a, site, "a")[first : first + 16]
    return _product(w, kind, columns, rows, b, accumulate, c, site)


def _product(
    w: Warp,
    kind: str,
    columns: int,
    rows: NDArray[np.float64],
    b: int,
    accumulate: int,
    c: tuple[Value, ...],
    site: int,
) -> tuple[Array, ...]:
    """``rows`` (16 of A) times the column operand, plus C where ``accumulate``."""
    sums = np.zeros((16, columns))
    places = [
        (_GROUP + number // 2 % 2 * 8, number // 4 * 8 + _QUAD * 2 + number % 2) for number in range(len(c))
    ]
    if accumulate:
        for place, word in zip(places, c, strict=True):
            sums[place] = decode(spread(word, 32), "f32")
    with np.errstate(invalid="ignore", over="ignore"):
        result = (rows @ _columns(w, kind, columns, b, site, "b").T + sums).astype(np.float32)
    return tuple(np.ascontiguousarray(spread(encode(result[place], "f32"), 32)) for place in places)


def _columns(
    w: Warp, kind: str, columns: int, descriptor: int, site: int, operand: str
) -> NDArray[np.float64]:
    """``[columns, 16]`` of an operand in shared memory: 8 rows of a swizzle span each make a group."""
    layout = descriptor >> 62
    if layout not in _SPANS or descriptor >> 49 & 7:
        raise Unsupported(
            f"matrix descriptor {descriptor:#018x}: unswizzled and offset layouts are not modelled"
        )
    span = _SPANS[layout]
    start, stride = (descriptor & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4
    row = np.arange(columns)[:, None]
    address = start + row // 8 * stride + row % 8 * span + np.arange(2)[None, :] * 16
    address ^= (address >> 7 & span // 16 - 1) << 4
    offsets = address.reshape(-1).astype(np.int64)
    w.cta.smem.check(int(offsets.min()), int(offsets.max()) + 16, 16, "wgmma")
    if w.races is not None:
        w.races.wgmma_read(w, w.cta, offsets, 16, site)
    if w.cta.smem.undefined is not None:
        note_rows(w, operand, offsets, columns, site)
    chunks = w.cta.smem.u8[offsets[:, None] + np.arange(16)[None, :]]
    return decode(np.ascontiguousarray(chunks).view(np.uint16), kind).astype(np.float64).reshape(columns, _K)
