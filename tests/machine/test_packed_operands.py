"""Packed 4- and 6-bit elements: groups of 16 in shared memory, by hand; a TMA load that unpacks them."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.values.packed_operands import codes_of, spread_groups
from tests.machine.ptx import run_body
from tests.machine.tensor_maps import TYPES, tensor_map
from tests.machine.test_tma import DUMP, LOAD, PARAMS


def _pack(codes: list[int], bits: int) -> bytes:
    """Element n takes bits ``n * bits`` and up of one little-endian number."""
    return sum(code << bits * n for n, code in enumerate(codes)).to_bytes(len(codes) * bits // 8, "little")


@pytest.mark.parametrize("bits", [4, 6])
def test_groups_keep_their_codes(bits: int) -> None:
    """16 elements fill the first 8 or 12 of 16 bytes; the rest must not be looked at."""
    codes = [(7 * n + 3) % (1 << bits) for n in range(32)]
    packed = np.frombuffer(_pack(codes[:16], bits) + _pack(codes[16:], bits), np.uint8)
    padded = spread_groups(packed.reshape(1, -1), bits)
    used = 2 * bits
    assert padded[0, :used].tobytes() == _pack(codes[:16], bits)
    assert padded[0, 16 : 16 + used].tobytes() == _pack(codes[16:], bits)
    padded[0, used:16] = padded[0, 16 + used :] = 0xFF
    assert codes_of(padded, bits).tolist() == [codes]


@pytest.mark.parametrize(("kind", "code", "bits"), [("fp4p", 12, 4), ("fp6p", 13, 6)])
def test_load_unpacks_and_counts_packed_bytes(
    monkeypatch: pytest.MonkeyPatch, kind: str, code: int, bits: int
) -> None:
    """A box of 128 x 2 elements: 128 bytes per row in shared memory, while the barrier expects the packed bytes."""
    monkeypatch.setitem(TYPES, kind, (code, bits))
    row = 128 * bits // 8
    source = np.arange(2 * row, dtype=np.uint8).reshape(2, row)
    descriptor = tensor_map(source.ctypes.data, kind, (128, 2), (row,), (128, 2), 0)
    out = np.zeros(256, np.uint8)
    body = LOAD.format(bytes=2 * row, at=1024, x=0, y=0) + DUMP.format(bytes=256, at=1024)
    result = run_body(body, descriptor, out, params=PARAMS, smem_bytes=2048, memory=[source])
    assert result.ok, str(result)
    groups = out.reshape(2, 8, 16)
    assert groups[:, :, : 2 * bits].reshape(2, row).tolist() == source.tolist()
    assert not groups[:, :, 2 * bits :].any()
