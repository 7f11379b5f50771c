"""Block-scaled ``tcgen05.mma`` of a pair with M = 128: 64 rows in each CTA, the upper half of N in lanes 64 and up.

The oracle is a float64 product. Lanes, columns and bytes are placed here one by one: the accumulator by PTX ISA, data
path layout B; the factors by CuTe's ``tmem_sf_frg``, which calls it the 2x2 data path.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.run.run import SimResult
from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import run_body
from tests.machine.test_tensor_core import descriptor, drain, fp4_values, place_k_major
from tests.machine.undefined_programs import assert_left

# Both CTAs bring their image and say so to the cluster; thread 0 of the first issues for both.
PAIR = """
mov.u32 %r1, %tid.x;
shr.u32 %r2, %r1, 5;
mov.u32 %r10, smem;
mov.u32 %r3, %cluster_ctarank;
ld.param.u64 %d1, [out];
ld.param.u64 %d2, [image];
mul.wide.u32 %d4, %r3, {size};
add.u64 %d2, %d2, %d4;
mul.wide.u32 %d4, %r3, {out_bytes};
add.u64 %d1, %d1, %d4;
setp.ne.u32 %p1, %r1, 0;
setp.ne.u32 %p2, %r2, 0;
@%p1 bra READY;
mbarrier.init.shared.b64 [%r10], 1;
mbarrier.init.shared.b64 [%r10+8], 1;
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared.b64 _, [%r10], {loaded};
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10+1024], [%d2], {loaded}, [%r10];
READY:
@%p2 bra ALLOCATED;
tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r10+16], 512;
ALLOCATED:
bar.sync 0;
L1:
mbarrier.try_wait.parity.shared.b64 %p3, [%r10], 0;
@!%p3 bra L1;
ld.shared.u32 %r20, [%r10+16];
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
setp.ne.u32 %p5, %r3, 0;
or.pred %p6, %p1, %p5;
@%p6 bra ISSUED;
{issue}
mov.b16 %h1, 3;
tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r10+8], %h1;
ISSUED:
L2:
mbarrier.try_wait.parity.shared.b64 %p4, [%r10+8], 0;
@!%p4 bra L2;
shl.b32 %r21, %r2, 21;
add.u32 %r22, %r20, %r21;
mul.wide.u32 %d3, %r1, {row_bytes};
add.u64 %d3, %d3, %d1;
{drain}
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
@%p2 bra END;
tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r20, 512;
END:
"""
SFB = "64x128b.warpx2::01_23"
SFA_COLUMN, SFB_COLUMN = 256, 260
NAN = 0x7F  # E4M3: what no product may use


class Problem:
    """One K step of 64 NVFP4 elements: codes [rows, 32 bytes], exponents of E4M3 factors [rows, 4]."""

    def __init__(self, n: int) -> None:
        random = np.random.default_rng(n)
        self.n = n
        self.a, self.b = (random.integers(0, 256, (rows, 32), np.uint8) for rows in (128, n))
        self.ea, self.eb = (random.integers(-2, 3, (rows, 4)) for rows in (128, n))

    def expected(self) -> np.ndarray:
        wide = [
            fp4_values(codes).astype(np.float64) * np.repeat(2.0**e, 16, axis=1)
            for codes, e in ((self.a, self.ea), (self.b, self.eb))
        ]
        return wide[0] @ wide[1].T

    def image(self, rank: int) -> np.ndarray:
        """A and B halves of a CTA, 512 bytes of factors of its rows of A, 1024 bytes of factors of all of B."""
        half = self.n // 2
        operands = np.zeros(32 * (64 + half), np.uint8)
        place_k_major(operands, 0, self.a[64 * rank : 64 * rank + 64], 0)
        place_k_major(operands, 2048, self.b[half * rank : half * rank + half], 0)
        sfa, sfb = np.full((32, 16), NAN, np.uint8), np.full((64, 16), NAN, np.uint8)
        for row in range(64):
            sfa[row % 32, 4 * (row // 32) :][:4] = self.ea[64 * rank + row] + 7 << 3
        for row in range(self.n):
            part, within = divmod(row, half)
            sfb[32 * part + within % 32, 4 * (within // 32) :][:4] = self.eb[row] + 7 << 3
        return np.concatenate([operands, sfa.reshape(-1), sfb.reshape(-1)])

    def issue(self, copy: str) -> str:
        factors = 32 * (64 + self.n // 2)
        da, db = (descriptor(at, 128, 256, 0) for at in (0, 2048))
        sa, sb = (descriptor(at, 16, 128, 0) for at in (factors, factors + 512))
        idesc = 1 << 7 | 1 << 10 | self.n >> 3 << 17 | 128 >> 4 << 24
        return f"""
            add.u32 %r33, %r20, {SFA_COLUMN};
            add.u32 %r34, %r20, {SFB_COLUMN};
            mov.b64 %d10, {da};
            mov.b64 %d11, {db};
            mov.b64 %d12, {sa};
            mov.b64 %d13, {sb};
            mov.b32 %r30, {idesc};
            setp.ne.u32 %p9, 0, 0;
            tcgen05.cp.cta_group::2.32x128b.warpx4 [%r33], %d12;
            tcgen05.cp.cta_group::2.{copy} [%r34], %d13;
            tcgen05.mma.cta_group::2.kind::mxf4nvf4.block_scale.block16 [%r20], %d10, %d11, %r30, [%r33], [%r34], %p9;
        """


def run(n: int, copy: str = SFB, missing: int = 0) -> tuple[SimResult, np.ndarray, np.ndarray]:
    """The result, the accumulators [CTA, lane, column], and what they should be."""
    problem = Problem(n)
    images = np.concatenate([problem.image(rank) for rank in range(2)])
    size, columns = images.size // 2, n // 2
    out = np.zeros((2, 128, columns), np.uint32)
    body = PAIR.format(
        size=size, loaded=size - missing, out_bytes=512 * columns, row_bytes=4 * columns,
        issue=problem.issue(copy), drain=drain(columns),
    )  # fmt: skip
    result = run_body(
        body, out, images, params=".param .u64 out, .param .u64 image", grid=(2, 1, 1), cluster=(2, 1, 1),
        block=(128, 1, 1), smem_bytes=1024 + size,
    )  # fmt: skip
    wanted = problem.expected()
    placed = np.zeros((2, 128, columns))
    for row in range(128):
        for part in range(2):
            placed[row // 64, 64 * part + row % 64] = wanted[row, columns * part : columns * part + columns]
    return result, out.view(np.float32), placed


@pytest.mark.parametrize("n", [128, 256])
def test_each_half_of_the_lanes_has_the_factors_of_its_half_of_n(n: int) -> None:
    result, found, expected = run(n)
    assert result.ok, str(result)
    assert np.array_equal(found, expected)


def test_factors_of_the_other_half_give_other_numbers() -> None:
    """All quarters alike, as M = 256 wants them: the upper lanes then have the factors of the lower half of N."""
    result, found, expected = run(256, "32x128b.warpx4")
    assert result.ok, str(result)
    assert np.array_equal(found[:, :64], expected[:, :64])
    assert not np.array_equal(found[:, 64:], expected[:, 64:])


def test_both_quarters_of_a_half_need_them() -> None:
    result, _, _ = run(256, "64x128b.warpx2::02_13")
    assert result.status is SimStatus.PROTOCOL_ERROR, str(result)
    assert f"at TMEM column {SFB_COLUMN} are others in lanes 32..63 than in lanes 0..31" in str(result)


def test_factors_that_nobody_wrote_reach_their_columns_alone() -> None:
    """The last 16 bytes: factors of rows 95 and 127 of B, for 64 rows of A in each CTA."""
    result, found, expected = run(128, missing=16)
    first = 4 * (64 * 64 + 31)  # lane 64, column 31
    assert_left(result, 2 * 2 * 64 * 4, first, "SMEM (CTA 0) offset 0x1df0, never written")
    known = [column for column in range(64) if column not in (31, 63)]
    assert np.array_equal(found[:, :64], expected[:, :64])
    assert np.array_equal(found[:, 64:][:, :, known], expected[:, 64:][:, :, known])


def test_other_widths_are_not_modelled() -> None:
    """CuTe rounds N up to 128 for the factors; where the half of the accumulator then finds them is not described."""
    result, _, _ = run(192)
    assert result.status is SimStatus.UNSUPPORTED, str(result)
    assert "N in steps of 128" in str(result)
