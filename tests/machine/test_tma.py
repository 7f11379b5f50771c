"""TMA copies: every byte against the address formula, out-of-bounds boxes, barriers, stores and reductions."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import run_body
from tests.machine.tensor_maps import TYPES, tensor_map

LOAD = """
mov.u32 %r1, %tid.x;
mov.u32 %r10, smem;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra WAIT;
mbarrier.init.shared.b64 [%r10], 1;
mbarrier.arrive.expect_tx.shared.b64 _, [%r10], {bytes};
cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r10+{at}], [map, {{{x}, {y}}}], [%r10];
WAIT:
bar.sync 0;
LOOP:
mbarrier.try_wait.parity.shared.b64 %p2, [%r10], 0;
@!%p2 bra LOOP;
"""
DUMP = """
ld.param.u64 %d1, [out];
mad.wide.u32 %d2, %r1, 4, %d1;
add.u32 %r11, %r10, {at};
mad.lo.u32 %r11, %r1, 4, %r11;
mov.u32 %r12, 0;
COPY:
ld.shared.u32 %r13, [%r11];
st.global.u32 [%d2], %r13;
add.u32 %r11, %r11, 128;
add.u64 %d2, %d2, 128;
add.u32 %r12, %r12, 128;
setp.lt.u32 %p3, %r12, {bytes};
@%p3 bra COPY;
"""
PARAMS = ".param .align 64 .b8 map[128], .param .u64 out"


def load_box(
    source: np.ndarray, box: tuple[int, int], start: tuple[int, int], *, kind: str, swizzle: int, at: int = 1024,
    **options: object,
) -> tuple[np.ndarray, object]:  # fmt: skip
    """Shared memory behind ``at`` after one load of a 2-D box; ``box`` and ``start`` are (inner, outer) elements."""
    bits = TYPES[kind][1]
    size = box[0] * bits // 8 * box[1]
    dims = (source.shape[1] * source.itemsize * 8 // bits, source.shape[0])
    descriptor = tensor_map(source.ctypes.data, kind, dims, (source.strides[0],), box, swizzle)
    out = np.zeros(size, np.uint8)
    body = (LOAD + DUMP).format(bytes=size, at=at, x=start[0], y=start[1])
    result = run_body(
        body,
        descriptor,
        out,
        params=PARAMS,
        smem_bytes=at + 2 * size,
        memory=(source,),
        check_races=False,
        **options,
    )
    return out, result


@pytest.mark.parametrize("at", [1024, 1024 + 128, 2048 + 512])
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_swizzle_follows_the_absolute_address(swizzle: int, at: int) -> None:
    """Byte i of the dense box lies at a ^ ((a >> 7 & m) << 4) with a = destination + i and m = 1, 3, 7."""
    inner = swizzle or 64
    source = np.random.default_rng(swizzle).integers(0, 256, (32, 256), np.uint8)
    out, result = load_box(source, (inner, 16), (16, 3), kind="u8", swizzle=swizzle, at=at)
    assert result.ok, str(result)
    dense = source[3:19, 16 : 16 + inner].reshape(-1)
    mask = {0: 0, 32: 1, 64: 3, 128: 7}[swizzle]
    start = 0x400 + at  # the dynamic array starts at 0x400
    expected = {}
    for i, byte in enumerate(dense.tolist()):
        address = start + i
        expected[(address ^ ((address >> 7 & mask) << 4)) - start] = byte
    inside = [place for place in expected if 0 <= place < len(out)]
    assert len(inside) > len(dense) // 2
    assert [int(out[place]) for place in inside] == [expected[place] for place in inside]


@pytest.mark.parametrize("start", [(-16, -2), (240, 30), (512, 0), (0, -16)])
def test_out_of_bounds_is_zero_and_counts_all_bytes(start: tuple[int, int]) -> None:
    """The barrier completes only because the full box counts."""
    source = np.random.default_rng(1).integers(1, 256, (32, 256), np.uint8)
    out, result = load_box(source, (64, 16), start, kind="u8", swizzle=0)
    assert result.ok, str(result)
    expected = np.zeros((16, 64), np.uint8)
    for y in range(16):
        for x in range(64):
            column, row = start[0] + x, start[1] + y
            if 0 <= column < 256 and 0 <= row < 32:
                expected[y, x] = source[row, column]
    assert np.array_equal(out.reshape(16, 64), expected)


def test_packed_fp4_counts_elements() -> None:
    """256 elements are 128 bytes; coordinates are elements."""
    source = np.random.default_rng(2).integers(0, 256, (16, 512), np.uint8)
    out, result = load_box(source, (256, 8), (512, 4), kind="fp4", swizzle=0)
    assert result.ok, str(result)
    assert np.array_equal(out.reshape(8, 128), source[4:12, 256:384])


def test_misaligned_coordinate_is_an_illegal_instruction() -> None:
    source = np.zeros((32, 256), np.uint8)
    _, result = load_box(source, (64, 16), (8, 0), kind="u8", swizzle=0)
    assert result.status is SimStatus.ILLEGAL_ACCESS
    assert "aligned to 16 bytes" in str(result)


def test_tensor_behind_its_memory_is_illegal() -> None:
    """The descriptor claims more rows than the array has."""
    source = np.zeros((32, 256), np.uint8)
    descriptor = tensor_map(source.ctypes.data, "u8", (256, 4096), (256,), (64, 16), 0)
    body = (LOAD + DUMP).format(bytes=1024, at=1024, x=0, y=2000)
    result = run_body(
        body,
        descriptor,
        np.zeros(1024, np.uint8),
        params=PARAMS,
        smem_bytes=4096,
        memory=(source,),
        check_races=False,
    )
    assert result.status is SimStatus.ILLEGAL_ACCESS


STORE = """
mov.u32 %r1, %tid.x;
mov.u32 %r10, smem;
ld.param.u64 %d1, [in];
mad.wide.u32 %d2, %r1, 64, %d1;
mad.lo.u32 %r11, %r1, 64, %r10;
mov.u32 %r12, 0;
FILL:
ld.global.v4.u32 {{%r20, %r21, %r22, %r23}}, [%d2];
st.shared.v4.u32 [%r11], {{%r20, %r21, %r22, %r23}};
add.u32 %r11, %r11, 16;
add.u64 %d2, %d2, 16;
add.u32 %r12, %r12, 16;
setp.lt.u32 %p1, %r12, 64;
@%p1 bra FILL;
{fence}
bar.sync 0;
setp.ne.u32 %p2, %r1, 0;
@%p2 bra END;
{store} [map, {{{x}, {y}}}], [%r10];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
END:
"""
STORE_PARAMS = ".param .align 64 .b8 map[128], .param .u64 in"
PLAIN = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"


def store_box(
    body_store: str, start: tuple[int, int], target: np.ndarray, data: np.ndarray, kind: str = "u8"
) -> object:
    bits = TYPES[kind][1]
    box = (64 * 8 // bits, 32)
    dims = (target.shape[1] * target.itemsize * 8 // bits, target.shape[0])
    descriptor = tensor_map(target.ctypes.data, kind, dims, (target.strides[0],), box, 0)
    body = STORE.format(store=body_store, x=start[0], y=start[1], fence="fence.proxy.async.shared::cta;")
    return run_body(body, descriptor, data, params=STORE_PARAMS, smem_bytes=4096, memory=(target,))


@pytest.mark.parametrize("start", [(32, 4), (224, 20), (256, 0), (0, 40)])
def test_store_drops_what_lies_outside(start: tuple[int, int]) -> None:
    target = np.full((32, 256), 7, np.uint8)
    data = np.random.default_rng(3).integers(0, 256, (32, 64), np.uint8)
    result = store_box(PLAIN, start, target, data)
    assert result.ok, str(result)
    expected = np.full((32, 256), 7, np.uint8)
    for y in range(32):
        for x in range(64):
            column, row = start[0] + x, start[1] + y
            if 0 <= column < 256 and 0 <= row < 32:
                expected[row, column] = data[y, x]
    assert np.array_equal(target, expected)


@pytest.mark.parametrize("start", [(-16, 0), (0, -1), (-16, -4), (0, -64)])
def test_store_at_a_negative_coordinate_is_illegal(start: tuple[int, int]) -> None:
    """Measured on Hopper (error 715), also for a box that lies outside altogether."""
    target = np.full((32, 256), 7, np.uint8)
    result = store_box(PLAIN, start, target, np.zeros((32, 64), np.uint8))
    assert result.status is SimStatus.ILLEGAL_ACCESS and "negative coordinate" in str(result)
    assert (target == 7).all()


def test_store_writes_the_last_16_bytes_of_a_row_whole() -> None:
    """Measured on Hopper: 19 columns of f16 at a pitch of 64 bytes end at byte 38, bytes 38..47 are overwritten too."""
    target = np.full((32, 64), 7, np.uint8)
    data = np.random.default_rng(8).integers(0, 256, (32, 64), np.uint8)
    descriptor = tensor_map(target.ctypes.data, "f16", (19, 32), (64,), (32, 32), 0)
    body = STORE.format(store=PLAIN, x=0, y=0, fence="fence.proxy.async.shared::cta;")
    result = run_body(body, descriptor, data, params=STORE_PARAMS, smem_bytes=4096, memory=(target,))
    assert result.ok, str(result)
    assert np.array_equal(target[:, :48], data[:, :48]) and (target[:, 48:] == 7).all()


def test_the_whole_last_unit_must_be_memory_of_the_tensor() -> None:
    """The last row has no padding here: the unit of 16 bytes ends 10 bytes behind the allocation."""
    memory = np.zeros(31 * 64 + 38, np.uint8)
    descriptor = tensor_map(memory.ctypes.data, "f16", (19, 32), (64,), (32, 32), 0)
    body = STORE.format(store=PLAIN, x=0, y=0, fence="fence.proxy.async.shared::cta;")
    options = {"params": STORE_PARAMS, "smem_bytes": 4096, "memory": (memory,)}
    result = run_body(body, descriptor, np.zeros((32, 64), np.uint8), **options)
    assert result.status is SimStatus.ILLEGAL_ACCESS and "TMA store" in str(result)


def test_reduction_adds_elements() -> None:
    target = np.arange(32 * 64, dtype=np.float32).reshape(32, 64)
    before = target.copy()
    data = np.random.default_rng(4).integers(-9, 9, (32, 16)).astype(np.float32)
    how = "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"
    result = store_box(how, (16, 0), target, data, "f32")
    assert result.ok, str(result)
    before[:, 16:32] += data
    assert np.array_equal(target, before)


def test_load_by_32_lanes_happens_32_times() -> None:
    """Measured on Hopper: with 32 times the bytes expected the barrier completes, with one it does or does not."""
    source = np.zeros((32, 64), np.uint8)
    descriptor = tensor_map(source.ctypes.data, "u8", (64, 32), (64,), (64, 2), 0)
    body = """
    mov.u32 %r10, smem;
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra ALL;
    mbarrier.init.shared.b64 [%r10], 1;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r10], {bytes};
    ALL:
    bar.sync 0;
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r10+1024], [map, {{0, 0}}], [%r10];
    LOOP:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r10], 0;
    @!%p2 bra LOOP;
    """
    options = {
        "params": ".param .align 64 .b8 map[128]",
        "smem_bytes": 4096,
        "memory": (source,),
        "check_races": False,
    }
    assert run_body(body.format(bytes=128 * 32), descriptor, **options).ok
    result = run_body(body.format(bytes=128), descriptor, **options)
    assert result.status is SimStatus.PROTOCOL_ERROR
    assert "received 3968 bytes more than it expects in phase 0" in str(result)
