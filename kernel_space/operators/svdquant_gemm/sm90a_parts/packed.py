"""Where a row's codes and scale factors lie in a packed slot."""

from typing import Any


def packed_chunk(row: Any, quad: Any) -> Any:
    """Byte offset of 16-byte piece ``quad`` of a 64-byte row in a 64-byte-swizzled packed slot."""
    return row * 64 + ((quad ^ ((row >> 1) & 3)) << 4)


def scale_offset(row: Any) -> Any:
    """Byte offset of the four scale factors of ``row`` in the first K block of a slot of scale factors."""
    return (row % 32) * 16 + (row % 128) // 32 * 4
