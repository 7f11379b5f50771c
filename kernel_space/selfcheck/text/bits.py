"""Operand bits that find mistakes: edges of every format, ties, denormals, NaNs, and bytes from a seed."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Sequence

from kernel_space.selfcheck.text.probe import seeded_bytes

F32_EDGES = (
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00400000, 0x00800000, 0x80800000,
    0x3F800000, 0xBF800000, 0x3F800001, 0x3F7FFFFF, 0x40000000, 0x40490FDB, 0x4B800000, 0x4B7FFFFF, 0x7F7FFFFF,
    0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF, 0xFFABCDEF,
)  # fmt: skip
# Where f32 narrows to 16 and 8 bits: just below, at and just above ties, smallest values, saturation.
F32_NARROW = (
    0x477FE000, 0x477FEFFF, 0x477FF000, 0x477FF001, 0x47800000, 0x38800000, 0x387FC000, 0x387FE000, 0x33800000,
    0x33000000, 0x33000001, 0x32FFFFFF, 0x33C00000, 0x3F801000, 0x3F801001, 0x3F803000, 0x3F800FFF, 0xBF801000,
    0x3F808000, 0x3F808001, 0x3F818000, 0x3F807FFF, 0x7F7F7FFF, 0x7F7F8000, 0x7F7F0000, 0x00008000, 0x00018000,
    0x43E00000, 0x43E7FFFF, 0x43E80000, 0x43E80001, 0x43F00000, 0xC3E80000, 0x47600000, 0x47700000, 0x476FFFFF,
    0x3C800000, 0x3B000000, 0x3A800000, 0x3A800001, 0x3B400000, 0x3AC00000, 0x37800000, 0x37000000, 0x37000001,
    0x3F880000, 0x3F980000, 0x3F880001, 0x3F900000, 0x3FA00000, 0x3FB00000, 0x3E800000, 0x3E800001, 0x3F400000,
    0x3FC00000, 0x40200000, 0x40600000, 0x40A00000, 0x40A00001, 0x40C00000, 0x40E00000, 0x3F000000, 0xBE800000,
)  # fmt: skip
F16_EDGES = (
    0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0xBC00, 0x3C01, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00,
    0x7C01, 0xFFFF, 0x5F00, 0x5F40, 0x5F41, 0x2400, 0x1800, 0x1400, 0x1401, 0x3C40, 0x3CC0, 0x7B00, 0x7B80,
)  # fmt: skip
INT_EDGES = (
    0, 1, 2, 3, 7, 31, 32, 33, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFE, 0x7FFFFFFF,
    0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF, 0xDEADBEEF, 0x01234567,
)  # fmt: skip


def words(values: Iterable[int]) -> bytes:
    """32-bit little-endian words."""
    values = list(values)
    return struct.pack(f"<{len(values)}I", *values)


def random_words(seed: str, count: int) -> list[int]:
    return list(struct.unpack(f"<{count}I", seeded_bytes(seed, 4 * count)))


def singles(edges: Sequence[int], seed: str, count: int) -> bytes:
    """Every edge, then random words up to ``count`` items of one word."""
    return words([*edges, *random_words(seed, count)][:count])


def tuples(edges: Sequence[int], seed: str, count: int, arity: int) -> bytes:
    """``count`` items of ``arity`` words: pairs of edges first (third words random edges), then random words."""
    picks = iter(seeded_bytes(seed + "/pick", 4 * count))
    grid = list(itertools.product(edges, repeat=2))
    step = max(1, len(grid) // (count // 2))
    items = [
        (*pair, *(edges[next(picks) % len(edges)] for _ in range(arity - 2)))[:arity] for pair in grid[::step]
    ]
    items = items[: count // 2]
    rest = random_words(seed, (count - len(items)) * arity)
    items += [tuple(rest[n : n + arity]) for n in range(0, len(rest), arity)]
    return words(itertools.chain.from_iterable(items))


def near(seed: str, count: int, arity: int) -> bytes:
    """f32 items of near magnitudes (exponents within 2^12 of 1), so that sums and products round."""
    values = random_words(seed, count * arity)
    return words(value & 0x807FFFFF | (115 + (value >> 23 & 0xFF) % 25) << 23 for value in values)
