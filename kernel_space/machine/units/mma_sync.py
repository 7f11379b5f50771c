"""``mma.sync`` m16n8k16 of half-precision operands, a warp at a time. PTX ISA 9.7.14.5, figures of m16n8k16.

Products are exact and summed in float64, then rounded to fp32 once: the ISA promises "at least single precision".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernel_space.machine.values.floats import decode, encode, halves
from kernel_space.machine.values.lanes import LANES, Array, Value, spread

_GROUP, _QUAD = np.arange(LANES) // 4, np.arange(LANES) % 4


def mma_16x8x16(
    kind: str, a: tuple[Value, ...], b: tuple[Value, ...], c: tuple[Value, ...]
) -> tuple[Array, ...]:
    """Registers of A (4), B (2) and C (4 of f32) -> the 4 of D. ``kind``: f16 or bf16."""
    rows, columns, sums = np.zeros((16, 16)), np.zeros((16, 8)), np.zeros((16, 8))
    for number, word in enumerate(a):
        for e, value in enumerate(_numbers(word, kind)):
            rows[_GROUP + number % 2 * 8, _QUAD * 2 + number // 2 * 8 + e] = value
    for number, word in enumerate(b):
        for e, value in enumerate(_numbers(word, kind)):
            columns[_QUAD * 2 + number * 8 + e, _GROUP] = value
    places = [(_GROUP + number // 2 * 8, _QUAD * 2 + number % 2) for number in range(4)]
    for place, word in zip(places, c, strict=True):
        sums[place] = decode(spread(word, 32), "f32")
    with np.errstate(invalid="ignore", over="ignore"):
        result = (rows @ columns + sums).astype(np.float32)
    return tuple(np.ascontiguousarray(spread(encode(result[place], "f32"), 32)) for place in places)


def _numbers(word: Value, kind: str) -> list[NDArray[np.float64]]:
    return [decode(half, kind).astype(np.float64) for half in halves(spread(word, 32))]
