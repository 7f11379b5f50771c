"""Size of the blocked layout of scale factors; needs no torch. ``nvfp4.block_scales`` says where each byte is."""

from __future__ import annotations

import math

SF_VEC_SIZE = 16  # elements per scale factor
SF_ROWS = 128  # rows and scales per row of one 512-byte block of the blocked layout
SF_GROUPS = 4
SF_BLOCK_K = SF_GROUPS * SF_VEC_SIZE  # elements along K of a block
SF_BLOCK_BYTES = SF_ROWS * SF_GROUPS


def blocked_scale_bytes(rows: int, k: int) -> int:
    """Bytes of the blocked layout of the scales of a ``[rows, k]`` operand."""
    return math.ceil(rows / SF_ROWS) * math.ceil(k / (SF_GROUPS * SF_VEC_SIZE)) * SF_BLOCK_BYTES
