"""Operands of ``wgmma``: K-major and MN-major, 16 and 8 bits, and signs, against numpy on operands laid out by hand.

PTX ISA 9.7.15.5, "Shared Memory Matrix Layout": an MN-major atom of the 128-byte swizzle holds 64 elements of 16 bits
along M or N by 8 along K; chunk c of its row k lies at chunk c XOR k.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.run.run import SimResult
from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import run_body

PROGRAM = """
mov.u32 %r1, %tid.x;
ld.param.u64 %d1, [data];
ld.param.u64 %d2, [out];
mov.u32 %r2, smem;
mov.u32 %r3, %r1;
COPY:
mad.wide.u32 %d3, %r3, 16, %d1;
mad.lo.u32 %r4, %r3, 16, %r2;
ld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%d3];
st.shared.v4.u32 [%r4], {{%r10, %r11, %r12, %r13}};
add.u32 %r3, %r3, 128;
setp.lt.u32 %p2, %r3, {chunks};
@%p2 bra COPY;
fence.proxy.async.shared::cta;
bar.sync 0;
shr.u32 %r5, %r2, 4;
and.b32 %r5, %r5, 16383;
or.b32 %r6, %r5, {a_low};
mov.b64 %d6, {{%r6, {a_high}}};
add.u32 %r7, %r5, {b_start};
or.b32 %r7, %r7, {b_low};
mov.b64 %d7, {{%r7, {b_high}}};
setp.ne.u32 %p1, 0, 0;
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n64{types} {{{sums}}}, %d6, %d7, %p1{flags};
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
{after}
mad.wide.u32 %d4, %r1, 128, %d2;
{stores}
"""
SUMS = [f"%r{40 + number}" for number in range(32)]
SWIZZLE_128 = 1 << 30


def k_major(raw: np.ndarray) -> np.ndarray:
    """[64, 32 bytes of K] in rows of 128 bytes, swizzled; 8 rows follow 8 rows."""
    image = np.zeros((64, 8, 16), np.uint8)
    for row in range(64):
        for chunk in range(2):
            image[row, chunk ^ row % 8] = raw[row, 16 * chunk : 16 * chunk + 16]
    return image.ravel()


def mn_major(values: np.ndarray) -> np.ndarray:
    """[64, 16] of 16 bits: two atoms of 64 x 8, one behind the other."""
    image = np.zeros((16, 8, 8), np.uint16)
    for k in range(16):
        for chunk in range(8):
            image[k, chunk ^ k % 8] = values[8 * chunk : 8 * chunk + 8, k].view(np.uint16)
    return image.ravel().view(np.uint8)


def run(
    a: np.ndarray, b: np.ndarray, types: str, flags: str, *, whole: bool = True, after: str = ""
) -> tuple[SimResult, np.ndarray]:
    """D [64, 64] of operands in shared memory; A at its start. Not ``whole``: without the last 128 bytes."""
    data = np.concatenate([a, b])
    stores = "\n".join(
        f"st.global.v4.u32 [%d4+{4 * n}], {{{', '.join(SUMS[n : n + 4])}}};" for n in range(0, 32, 4)
    )
    # The stride between groups of 8 rows (K-major) or of 8 along K (MN-major) is 1024 bytes in both.
    high = SWIZZLE_128 | 1024 >> 4
    body = PROGRAM.format(
        chunks=data.size // 16 - (0 if whole else 8), a_low=1 << 16, a_high=high, b_start=a.size >> 4, b_low=1 << 16,
        b_high=high, types=types, flags=flags, sums=", ".join(SUMS), stores=stores, after=after,
    )  # fmt: skip
    out = np.zeros((4, 8, 4, 8, 2, 2), np.uint32)  # warp, group, quad, 8 columns, row half, pair
    result = run_body(
        body, data, out, params=".param .u64 data, .param .u64 out", block=(128, 1, 1), smem_bytes=16384
    )
    return result, np.ascontiguousarray(out.transpose(0, 4, 1, 3, 2, 5)).reshape(64, 64)


@pytest.mark.parametrize("a_mn", [0, 1])
@pytest.mark.parametrize("b_mn", [0, 1])
@pytest.mark.parametrize("signs", [(1, 1), (-1, 1)])
def test_majors_and_signs(a_mn: int, b_mn: int, signs: tuple[int, int]) -> None:
    random = np.random.default_rng(1)
    a, b = (random.integers(-9, 10, (64, 16)).astype(np.float16) for _ in range(2))
    images = [mn_major(x) if mn else k_major(x.view(np.uint8)) for x, mn in ((a, a_mn), (b, b_mn))]
    result, d = run(*images, "k16.f32.f16.f16", f", {signs[0]}, {signs[1]}, {a_mn}, {b_mn}")
    assert result.ok, str(result)
    expected = signs[0] * signs[1] * (a.astype(np.float64) @ b.astype(np.float64).T)
    np.testing.assert_array_equal(d.view(np.float32), expected)


def test_a_product_differs_by_lane_though_its_operands_do_not() -> None:
    """Descriptors and sums that start at nothing are the same in all lanes; what is compared behind them is not."""
    random = np.random.default_rng(4)
    a, b = (random.integers(-9, 10, (64, 16)).astype(np.float16) for _ in range(2))
    positive = (
        "setp.lt.s32 %p5, %r40, 0;\nselp.b32 %r40, 0, %r40, %p5;"  # of the sum at (lane / 4, 2 * (lane % 4))
    )
    images = (k_major(x.view(np.uint8)) for x in (a, b))
    result, d = run(*images, "k16.f32.f16.f16", ", 1, 1, 0, 0", after=positive)
    assert result.ok, str(result)
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    own = np.zeros((64, 64), bool)
    own[np.arange(64) % 16 < 8, :8:2] = True
    np.testing.assert_array_equal(d.view(np.float32), np.where(own, np.maximum(expected, 0), expected))


def test_bytes() -> None:
    """E4M3: 0 to 7 subnormal, then sign, 4 bits of exponent (bias 7), 3 of mantissa; 32 of K."""
    random = np.random.default_rng(2)
    codes = [
        random.integers(0x28, 0x48, (64, 32), np.uint8) | random.integers(0, 2, (64, 32), np.uint8) << 7
        for _ in "ab"
    ]
    values = [
        np.where(x >> 7, -1.0, 1.0) * np.exp2((x >> 3 & 15).astype(np.float64) - 7) * (1 + (x & 7) / 8)
        for x in codes
    ]
    result, d = run(k_major(codes[0]), k_major(codes[1]), "k32.f32.e4m3.e4m3", ", 1, 1")
    assert result.ok, str(result)
    np.testing.assert_array_equal(d.view(np.float32), values[0] @ values[1].T)


def test_signed_and_unsigned_bytes() -> None:
    random = np.random.default_rng(3)
    a, b = random.integers(-128, 128, (64, 32), np.int8), random.integers(0, 256, (64, 32), np.uint8)
    result, d = run(k_major(a.view(np.uint8)), k_major(b), "k32.s32.s8.u8", "")
    assert result.ok, str(result)
    np.testing.assert_array_equal(d.view(np.int32), a.astype(np.int64) @ b.astype(np.int64).T)


def test_undefined_columns_of_an_mn_major_operand() -> None:
    """The last 128 bytes are k = 15 of every column, so all of D is undefined; K-major they are column 63 alone."""
    raw = np.ones((64, 16), np.float16)
    for image, flags, count in (
        (mn_major(raw), ", 1, 1, 0, 1", 64 * 64 * 4),
        (k_major(raw.view(np.uint8)), ", 1, 1, 0, 0", 64 * 4),
    ):
        result, _ = run(k_major(raw.view(np.uint8)), image, "k16.f32.f16.f16", flags, whole=False)
        assert result.status is SimStatus.ILLEGAL_ACCESS
        assert f"holds {count} undefined bytes" in str(result)


@pytest.mark.parametrize("types", ["k16.f32.f16.bf16", "k32.f32.f16.f16", "k16.f16.f16.f16"])
def test_what_is_not_modelled(types: str) -> None:
    image = np.zeros(8192, np.uint8)
    assert run(image, image, types, ", 1, 1, 0, 0")[0].status is SimStatus.UNSUPPORTED
