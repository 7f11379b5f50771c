"""Tensor maps changed by the kernel: the place of each field, a load through the changed map, its fences."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import run_body
from tests.machine.tensor_maps import tensor_map

# field, ordinal (or None), new value, 32-bit word of the descriptor, the bits it takes, their content
FIELDS = [
    ("rank.global.b1024.b32", None, 2, 2, 0x70, 2 << 4),
    ("global_dim.global.b1024.b32", 1, 777, 9, 0xFFFFFFFF, 776),
    ("global_stride.global.b1024.b64", 2, 0x1230, 5, 0xFFFFFFFF, 0x123),
    ("global_stride.global.b1024.b64", 1, 0x5 << 36, 7, 0xF0, 0x5 << 4),
    ("box_dim.global.b1024.b32", 0, 64, 13, 0xFF000000, 63 << 24),
    ("box_dim.global.b1024.b32", 3, 9, 14, 0xFF0000, 8 << 16),
    ("element_stride.global.b1024.b32", 2, 3, 13, 7 << 6, 2 << 6),
    ("elemtype.global.b1024.b32", None, 10, 2, 0x10780, 10 << 7),
    ("elemtype.global.b1024.b32", None, 11, 2, 0x10780, 7 << 7 | 1 << 16),
    ("interleave_layout.global.b1024.b32", None, 2, 2, 3 << 11, 2 << 11),
    ("swizzle_mode.global.b1024.b32", None, 3, 2, 3 << 13, 3 << 13),
    ("fill_mode.global.b1024.b32", None, 1, 2, 1 << 15, 1 << 15),
    ("swizzle_atomicity.global.b1024.b32", None, 1, 2, 3 << 19, 1 << 19),
]


@pytest.mark.parametrize(("field", "ordinal", "value", "word", "mask", "content"), FIELDS)
@pytest.mark.parametrize("before", [0, 0xFF], ids=["zeros", "ones"])
def test_field(
    field: str, ordinal: int | None, value: int, word: int, mask: int, content: int, before: int
) -> None:
    data = np.full(256, before, np.uint8)
    start = -data.ctypes.data % 128
    where = data[start : start + 128]
    operands = f"{ordinal}, {value}" if ordinal is not None else str(value)
    if "b64" in field:
        operands = operands.rsplit(" ", 1)[0] + " %d3" if ordinal is not None else "%d3"
    body = (
        f"ld.param.u64 %d1, [out];\nmov.u64 %d3, {value};\ntensormap.replace.tile.{field} [%d1], {operands};"
    )
    result = run_body(body, where)
    assert result.ok, str(result)
    words = list(struct.unpack("<32I", where.tobytes()))
    same = 0xFFFFFFFF if before else 0
    assert words[word] & mask == content
    rest = [same] * 32
    rest[word] = same & ~mask | content
    if (
        "stride" in field and "global" in field.partition(".")[0]
    ):  # a stride has 32 bits in one word, 4 in word 7
        rest[3 + ordinal], nibble = value >> 4 & 0xFFFFFFFF, 4 * ordinal  # type: ignore[operator]
        rest[7] = same & ~(15 << nibble) | value >> 36 << nibble
    assert words == rest


LOAD = """
mov.u32 %r1, %tid.x;
mov.u32 %r10, smem;
ld.param.u64 %d1, [work];
ld.param.u64 %d2, [source];
ld.param.u64 %d4, [out];
setp.ne.u32 %p1, %r1, 0;
@%p1 bra WAIT;
tensormap.replace.tile.global_address.global.b1024.b64 [%d1], %d2;
tensormap.replace.tile.global_dim.global.b1024.b32 [%d1], 1, 3;
{release}
mbarrier.init.shared.b64 [%r10], 1;
mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 128;
{acquire}
cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r10+1024], [%d1, {{0, 0}}], [%r10];
WAIT:
bar.sync 0;
LOOP:
mbarrier.try_wait.parity.shared.b64 %p2, [%r10], 0;
@!%p2 bra LOOP;
mad.lo.u32 %r11, %r1, 4, %r10;
ld.shared.u32 %r12, [%r11+1024];
mad.wide.u32 %d5, %r1, 4, %d4;
st.global.u32 [%d5], %r12;
"""
RELEASE = "fence.proxy.tensormap::generic.release.gpu;"
ACQUIRE = "fence.proxy.tensormap::generic.acquire.gpu [%d1], 128;"
PARAMS = ".param .u64 work, .param .u64 source, .param .u64 out"


def _load(release: str, acquire: str) -> tuple[object, np.ndarray, np.ndarray]:
    old, new = np.zeros((4, 8), np.uint32), np.arange(32, dtype=np.uint32).reshape(4, 8) + 5
    space = np.zeros(256, np.uint8)
    start = -space.ctypes.data % 128
    work = space[start : start + 128]
    work[:] = np.frombuffer(tensor_map(old.ctypes.data, "u32", (8, 4), (32,), (8, 4), 0), np.uint8)
    out = np.zeros(32, np.uint32)
    body = LOAD.format(release=release, acquire=acquire)
    result = run_body(body, work, new, out, params=PARAMS, smem_bytes=2048, memory=[old])
    return result, new, out


def test_load_through_a_changed_map() -> None:
    """The map now names another tensor, with three rows: the fourth reads as zero."""
    result, new, out = _load(RELEASE, ACQUIRE)
    assert result.ok, str(result)  # type: ignore[attr-defined]
    assert out.tolist() == [*new[:3].reshape(-1).tolist(), *([0] * 8)]


@pytest.mark.parametrize(
    ("release", "acquire", "text"),
    [("", ACQUIRE, "no release fence"), (RELEASE, "", "acquire on it since")],
    ids=["no_release", "no_acquire"],
)
def test_missing_fence_is_a_race(release: str, acquire: str, text: str) -> None:
    result, _, _ = _load(release, acquire)
    assert result.status is SimStatus.RACE  # type: ignore[attr-defined]
    assert text in str(result)
