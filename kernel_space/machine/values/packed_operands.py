"""Packed 4- and 6-bit elements in shared memory: 16 elements from the start of each 16 bytes, the rest is padding.

TMA of element types 16U4_ALIGN16B and 16U6_ALIGN16B unpacks so far (8 or 12 bytes become 16), and MMAs of kinds
f8f6f4 and mxf8f6f4 read such operands. PTX ISA 9.7.16 "data types b4x16_p64 and b6x16_p32". The transaction count of
a barrier counts the packed bytes: CuTe DSL's kernels expect them.

Tensor memory holds an element to a byte, in the middle of it: ``tcgen05.cp`` with ``.b8x16`` makes these of padded
groups (PTX ISA 9.7.16.9.1 "optional decompression"; the bits are those that CUTLASS's example names).
"""

from __future__ import annotations

import numpy as np

from kernel_space.machine.values.lanes import Array

GROUP = 16  # elements, and bytes of shared memory, per group
PACKED = {"e2m1": 4, "e2m3": 6, "e3m2": 6}  # operand formats that are packed, and bits per element
_BELOW = {4: 2, 6: 1}  # bits of padding below an element in its byte of tensor memory: 00xxxx00, 0xxxxxx0


def spread_groups(packed: Array, bits: int) -> Array:
    """Rows of packed elements [rows, bytes] -> rows of padded groups; the padding is zero."""
    used = GROUP * bits // 8
    groups = packed.reshape(packed.shape[0], -1, used)
    padded = np.zeros((*groups.shape[:2], GROUP), np.uint8)
    padded[:, :, :used] = groups
    return padded.reshape(packed.shape[0], -1)


def codes_of(data: Array, bits: int) -> Array:
    """Padded groups in the bytes of ``data`` (last axis a multiple of 16) -> one code per byte, same shape."""
    groups = data.reshape(-1, GROUP)[:, : GROUP * bits // 8]
    if bits == 4:
        codes = np.stack([groups & 15, groups >> 4], axis=2)
    else:
        triples = groups.reshape(len(groups), -1, 3).astype(np.uint32)
        words = triples[:, :, 0] | triples[:, :, 1] << 8 | triples[:, :, 2] << 16
        codes = (words[:, :, None] >> np.arange(0, 24, 6, dtype=np.uint32)) & 63
    return np.ascontiguousarray(codes, dtype=np.uint8).reshape(data.shape)


def bytes_of(data: Array, bits: int) -> Array:
    """Padded groups in the bytes of ``data`` -> bytes of tensor memory, same shape. 0 ``bits``: nothing is packed."""
    return codes_of(data, bits) << np.uint8(_BELOW[bits]) if bits else data


def held_codes(data: Array, bits: int) -> Array:
    """Bytes of tensor memory -> one code per byte; the padding does not count."""
    return data >> np.uint8(_BELOW[bits]) & np.uint8((1 << bits) - 1)
