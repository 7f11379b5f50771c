"""``st.async``: bytes in the other CTA of a cluster, counted by the barrier beside them."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import run_body

BODY = """
mov.u32 %r1, %tid.x;
mov.u32 %r2, %cluster_ctarank;
mov.u32 %r10, smem;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra READY;
mbarrier.init.shared.b64 [%r10], 1;
mbarrier.arrive.expect_tx.shared.b64 _, [%r10], {expected};
READY:
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
xor.b32 %r3, %r2, 1;
mapa.shared::cluster.u32 %r4, %r10, %r3;
mad.lo.u32 %r5, %r1, 8, %r4;
mad.lo.u32 %r6, %r2, 100, %r1;
add.u32 %r7, %r6, 1000;
st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r5+64], {{%r6, %r7}}, [%r4];
{wait}
mad.lo.u32 %r8, %r1, 8, %r10;
ld.shared.v2.u32 {{%r12, %r13}}, [%r8+64];
ld.param.u64 %d1, [out];
mad.lo.u32 %r9, %r2, 32, %r1;
mad.wide.u32 %d2, %r9, 8, %d1;
st.global.v2.u32 [%d2], {{%r12, %r13}};
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
"""
WAIT = """
LOOP:
mbarrier.try_wait.parity.shared.b64 %p2, [%r10], 0;
@!%p2 bra LOOP;
"""


VECTOR = """
{
.reg .v2 .s32 ab;
mov.s32 ab.x, %r6;
mov.s32 ab.g, %r7;
st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.s32 [%r5+64], ab, [%r4];
}
"""


@pytest.mark.parametrize("register", ["listed", "a vector"])
@pytest.mark.parametrize("schedule", ["eager", "slow_tma"])
def test_values_arrive_in_the_peer(schedule: str, register: str) -> None:
    """Lane n of CTA r sends (100 r + n, 1000 + 100 r + n): 32 lanes of 8 bytes are 256 bytes."""
    out = np.zeros((2, 32, 2), np.uint32)
    body = BODY.format(expected=256, wait=WAIT)
    if register == "a vector":
        (listed,) = (line for line in body.splitlines() if line.startswith("st.async"))
        body = body.replace(listed, VECTOR)
    result = run_body(
        body,
        out,
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
        smem_bytes=512,
        schedule=schedule,
    )
    assert result.ok, str(result)
    for rank in (0, 1):
        sent = 100 * (1 - rank) + np.arange(32)
        assert out[rank].tolist() == np.stack([sent, sent + 1000], axis=1).tolist()


def test_too_many_bytes_expected_never_completes() -> None:
    out = np.zeros((2, 32, 2), np.uint32)
    body = BODY.format(expected=264, wait=WAIT)
    result = run_body(body, out, grid=(2, 1, 1), cluster=(2, 1, 1), smem_bytes=512)
    assert result.status is SimStatus.DEADLOCK


def test_reading_without_waiting_is_a_race() -> None:
    out = np.zeros((2, 32, 2), np.uint32)
    body = BODY.format(expected=256, wait="bar.sync 0;")
    result = run_body(body, out, grid=(2, 1, 1), cluster=(2, 1, 1), smem_bytes=512)
    assert result.status is SimStatus.RACE, str(result)
