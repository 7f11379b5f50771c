"""``wgmma.mma_async`` with A in registers or shared memory, a warp at a time. PTX ISA 9.7.15 (asynchronous
warpgroup level matrix).

A warp's 16 rows of A make its 16 rows of D, so nothing passes between the warps of a warpgroup. The product is made
when it is issued; that registers and operands belong to it until ``wgmma.wait_group`` is checked (``wgmma_order.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernel_space.machine.units.tensor_core import K_BYTES, decode, k_major_chunks, mn_major_chunks
from kernel_space.machine.units.undefined_products import note_rows
from kernel_space.machine.values.faults import Unsupported
from kernel_space.machine.values.floats import canonical
from kernel_space.machine.values.lanes import LANES, Array, Value, spread

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Warp

_GROUP, _QUAD = np.arange(LANES) // 4, np.arange(LANES) % 4
_SPANS = {0: 0, 1: 128, 2: 64, 3: 32}  # layout field of the descriptor -> bytes of a swizzled row
SIZES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}


class WgmmaShape(NamedTuple):
    """``columns`` of D; formats of A, B and D; ``sign`` of the product; which operands lie MN-major (16 bits only)."""

    columns: int
    a: str
    b: str
    d: str
    sign: int = 1
    a_mn_major: bool = False
    b_mn_major: bool = False


def wgmma_registers(
    w: Warp,
    shape: WgmmaShape,
    a: tuple[Value, ...],
    b: int,
    accumulate: int,
    c: tuple[Value, ...],
    site: int,
) -> tuple[Array, ...]:
    """D of this warp: A (4 registers of 4 bytes) x B (shared memory, descriptor ``b``) + C where ``accumulate``."""
    w.site = site
    rows = np.zeros((16, K_BYTES // 4), np.uint32)
    for number, word in enumerate(a):
        rows[_GROUP + number % 2 * 8, _QUAD + number // 2 * 4] = spread(word, 32)
    return _product(w, shape, decode(rows.view(np.uint8), shape.a), b, accumulate, c, site)


def wgmma_shared(
    w: Warp,
    shape: WgmmaShape,
    a: int,
    b: int,
    accumulate: int,
    c: tuple[Value, ...],
    site: int,
) -> tuple[Array, ...]:
    """``wgmma_registers`` with the 64 rows of A in shared memory, descriptor ``a``; a warp has 16 of them."""
    w.site = site
    first = w.number % 4 * 16
    rows = _operand(w, shape.a, 64, a, shape.a_mn_major, site, "a")[first : first + 16]
    return _product(w, shape, rows, b, accumulate, c, site)


def _product(
    w: Warp,
    shape: WgmmaShape,
    rows: NDArray[np.float64],
    b: int,
    accumulate: int,
    c: tuple[Value, ...],
    site: int,
) -> tuple[Array, ...]:
    """``rows`` (16 of A) times the column operand, plus C where ``accumulate``."""
    kind = np.int32 if shape.d == "s32" else np.float32
    sums = np.zeros((16, shape.columns))
    places = [
        (_GROUP + number // 2 % 2 * 8, number // 4 * 8 + _QUAD * 2 + number % 2) for number in range(len(c))
    ]
    if accumulate:
        for place, word in zip(places, c, strict=True):
            sums[place] = np.ascontiguousarray(spread(word, 32), np.uint32).view(kind)
    columns = _operand(w, shape.b, shape.columns, b, shape.b_mn_major, site, "b")
    with np.errstate(invalid="ignore", over="ignore"):
        total = shape.sign * (rows.astype(np.float64) @ columns.T) + sums
        result = _wrapped(total) if shape.d == "s32" else canonical(total.astype(np.float32), "f32")
    return tuple(np.ascontiguousarray(spread(result[place], 32)) for place in places)


def _wrapped(total: NDArray[np.float64]) -> Array:
    """Sums of integers, exact in float64, as 32 bits."""
    bits: Array = total.astype(np.int64).astype(np.uint32)
    return bits


def _operand(
    w: Warp, form: str, rows: int, descriptor: int, mn_major: bool, site: int, operand: str
) -> NDArray[np.float64]:
    """``[rows, K]`` of an operand in shared memory, in the canonical layouts of ``tensor_core``."""
    layout = descriptor >> 62
    if descriptor >> 49 & 7:
        raise Unsupported(f"matrix descriptor {descriptor:#018x}: a base offset is not modelled")
    start, lbo, sbo = (16 * (descriptor >> bit & 0x3FFF) for bit in (0, 16, 32))
    low, block, size = start & 1023, start & ~1023, SIZES[form]
    chunks = (
        mn_major_chunks(low, lbo, sbo, _SPANS[layout], False, rows, size)
        if mn_major
        else k_major_chunks(low, lbo, sbo, _SPANS[layout], False, rows)
    )
    offsets = (block + 16 * chunks.astype(np.int64)).reshape(-1)
    w.cta.smem.check(int(offsets.min()), int(offsets.max()) + 16, 16, "wgmma")
    if w.races is not None:
        w.races.wgmma_read(w, w.cta, offsets, 16, site)
    if w.cta.smem.undefined is not None:
        note_rows(w, operand, offsets, rows, site, mn_size=size if mn_major else 0)
    found = np.ascontiguousarray(w.cta.smem.u8[offsets[:, None] + np.arange(16)[None, :]])
    if mn_major:  # [K, rows] of whole elements
        elements = found.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[size]).reshape(-1, rows)
        found = np.ascontiguousarray(elements.T).view(np.uint8)
    return decode(found.reshape(rows, K_BYTES), form).astype(np.float64)
