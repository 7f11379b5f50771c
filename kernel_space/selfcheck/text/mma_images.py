"""Operand images and descriptors of ``tcgen05.mma`` probes, built on the host.

A K-major operand without swizzle: 8 rows x 16 bytes make a core matrix of 128 consecutive bytes; the two core
matrices of a K step (32 bytes) follow each other, then the next 8 rows. One step of R rows takes 32 R bytes.
"""

from __future__ import annotations

import numpy as np

LBO, SBO = 128, 256  # bytes between core matrices along K, and between groups of 8 rows


def core_matrices(rows: np.ndarray) -> bytes:
    """(R, 32) bytes of one K step -> its image."""
    assert rows.dtype == np.uint8 and rows.shape[1] == 32
    return rows.reshape(-1, 8, 2, 16).transpose(0, 2, 1, 3).tobytes()


def dense_idesc(
    m: int, n: int, *, d: int = 1, a: int = 0, b: int = 0, negate: int = 0, transpose: int = 0
) -> int:
    """``d``: 0 f16, 1 f32, 2 s32. ``negate``, ``transpose``: bit 0 for A, bit 1 for B. ``m`` over the CTA group."""
    return d << 4 | a << 7 | b << 10 | negate << 13 | transpose << 15 | (n >> 3) << 17 | (m >> 4) << 24


def scaled_idesc(
    m: int, n: int, *, a: int = 1, b: int = 1, ue8m0: bool = False, sfa: int = 0, sfb: int = 0
) -> int:
    """Block-scaled kinds. ``sfa``, ``sfb``: byte of the scale word that a step uses."""
    return sfb << 4 | a << 7 | b << 10 | (n >> 3) << 17 | int(ue8m0) << 23 | (m >> 4) << 24 | sfa << 29


def f16(values: np.ndarray) -> np.ndarray:
    """(R, 16) numbers -> (R, 32) bytes."""
    return np.ascontiguousarray(values.astype(np.float16)).view(np.uint8)


def bf16(values: np.ndarray) -> np.ndarray:
    """(R, 16) numbers that bf16 holds exactly -> (R, 32) bytes."""
    return np.ascontiguousarray((values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)).view(
        np.uint8
    )


def f32(values: np.ndarray) -> np.ndarray:
    """(R, 8) numbers -> (R, 32) bytes."""
    return np.ascontiguousarray(values.astype(np.float32)).view(np.uint8)
