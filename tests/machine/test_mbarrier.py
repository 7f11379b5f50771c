"""mbarrier phases, transaction bytes and named barriers against states worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import TWO_BARRIERS, run_body

LEADER = """
mov.u32 %r1, %tid.x;
mov.u32 %r10, smem;
ld.param.u64 %d1, [out];
setp.ne.u32 %p1, %r1, 0;
@%p1 bra END;
{body}
END:
"""


def looks(body: str, count: int) -> list[int]:
    """Run ``body`` in lane 0; it leaves look results in %r30..: 1 for "phase completed"."""
    stores = "\n".join(f"st.global.u32 [%d1+{4 * n}], %r{30 + n};" for n in range(count))
    out = np.full(count, 99, np.uint32)
    result = run_body(LEADER.format(body=body + stores), out, smem_bytes=64, check_races=False)
    assert result.ok, str(result)
    return out.tolist()


def look(parity: int, register: int) -> str:
    return f"mbarrier.test_wait.parity.shared.b64 %p9, [%r10], {parity};\nselp.u32 %r{register}, 1, 0, %p9;\n"


def test_fresh_barrier_satisfies_parity_1_only() -> None:
    assert looks("mbarrier.init.shared.b64 [%r10], 1;\n" + look(0, 30) + look(1, 31), 2) == [0, 1]


def test_two_arrivals_complete_a_phase_of_two() -> None:
    body = "mbarrier.init.shared.b64 [%r10], 2;\n"
    body += "mbarrier.arrive.shared.b64 _, [%r10];\n" + look(0, 30)
    body += "mbarrier.arrive.shared.b64 _, [%r10];\n" + look(0, 31) + look(1, 32)
    body += "mbarrier.arrive.shared.b64 _, [%r10], 2;\n" + look(0, 33) + look(1, 34)
    assert looks(body, 5) == [0, 1, 0, 0, 1]


def test_phase_waits_for_the_expected_bytes() -> None:
    body = "mbarrier.init.shared.b64 [%r10], 1;\n"
    body += "mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 48;\n" + look(0, 30)
    body += "mbarrier.complete_tx.shared::cta.b64 [%r10], 32;\n" + look(0, 31)
    body += "mbarrier.complete_tx.shared::cta.b64 [%r10], 16;\n" + look(0, 32)
    assert looks(body, 3) == [0, 0, 1]


def test_bytes_may_come_before_they_are_expected() -> None:
    body = "mbarrier.init.shared.b64 [%r10], 1;\n"
    body += "mbarrier.complete_tx.shared::cta.b64 [%r10], 64;\n" + look(0, 30)
    body += "mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 64;\n" + look(0, 31)
    assert looks(body, 2) == [0, 1]


def test_arrive_drop_lowers_the_count() -> None:
    """After one dropped arrival of two, the next phase needs one arrival only."""
    body = "mbarrier.init.shared.b64 [%r10], 2;\n"
    body += "mbarrier.arrive_drop.shared.b64 _, [%r10];\nmbarrier.arrive.shared.b64 _, [%r10];\n" + look(
        0, 30
    )
    body += "mbarrier.arrive.shared.b64 _, [%r10];\n" + look(1, 31)
    assert looks(body, 2) == [1, 1]


def test_token_of_arrive_names_its_phase() -> None:
    body = """mbarrier.init.shared.b64 [%r10], 2;
    mbarrier.arrive.shared.b64 %d5, [%r10];
    mbarrier.test_wait.shared.b64 %p9, [%r10], %d5;
    selp.u32 %r30, 1, 0, %p9;
    mbarrier.arrive.shared.b64 %d6, [%r10];
    mbarrier.test_wait.shared.b64 %p9, [%r10], %d5;
    selp.u32 %r31, 1, 0, %p9;
    """
    assert looks(body, 2) == [0, 1]


def test_every_active_lane_arrives() -> None:
    body = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r10, smem;
    ld.param.u64 %d1, [out];
    setp.ne.u32 %p1, %r1, 0;
    @!%p1 mbarrier.init.shared.b64 [%r10], 32;
    bar.sync 0;
    mbarrier.arrive.shared.b64 _, [%r10];
    mbarrier.test_wait.parity.shared.b64 %p9, [%r10], 0;
    selp.u32 %r30, 1, 0, %p9;
    st.global.u32 [%d1], %r30;
    """
    out = np.zeros(1, np.uint32)
    assert run_body(body, out, smem_bytes=64, check_races=False).ok
    assert out.tolist() == [1]


BY_LANE = """
mov.u32 %r1, %tid.x;
mov.u32 %r10, smem;
ld.param.u64 %d1, [out];
mad.lo.u32 %r11, %r1, 8, %r10;
add.u32 %r12, %r1, 1;
mul.lo.u32 %r13, %r1, 16;
setp.gt.u32 %p1, %r1, 3;
@%p1 bra MADE;
mbarrier.init.shared.b64 [%r11], %r12;
mbarrier.expect_tx.relaxed.cta.shared.b64 [%r11], %r13;
MADE:
bar.sync 0;
@%p1 bra DONE;
{body}
DONE:
"""


def test_each_lane_has_a_barrier_of_its_own() -> None:
    """Lane n makes one of n + 1 arrivals and 16 n bytes. Two arrivals and 16 bytes later only number 1 is through."""
    ask = "mbarrier.test_wait.parity.shared.b64 %p9, [%r10+{at}], 0;\nselp.u32 %r30, 1, 0, %p9;\n"
    body = "setp.ne.u32 %p2, %r1, 0;\n@%p2 bra DONE;\n"
    for number in range(1, 4):
        body += f"mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r10+{8 * number}], 16;\n"
        body += f"mbarrier.arrive.shared.b64 _, [%r10+{8 * number}];\n" * 2
    for number in range(4):
        body += ask.format(at=8 * number) + f"st.global.u32 [%d1+{4 * number}], %r30;\n"
    out = np.zeros(4, np.uint32)
    result = run_body(BY_LANE.format(body=body), out, smem_bytes=64, check_races=False)
    assert result.ok, str(result)
    assert out.tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(
    "body",
    [
        "mbarrier.test_wait.parity.shared.b64 %p9, [%r11], 0;",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10], [%d1], %r13, [%r10];",
    ],
)
def test_lanes_that_differ_are_not_taken_for_the_first_one(body: str) -> None:
    result = run_body(BY_LANE.format(body=body), np.zeros(64, np.uint32), smem_bytes=64, check_races=False)
    assert result.status is SimStatus.UNSUPPORTED and "differs between lanes" in str(result), str(result)


def test_one_arrival_too_many_is_an_error() -> None:
    body = "mbarrier.init.shared.b64 [%r10], 1;\nmbarrier.expect_tx.relaxed.cta.shared.b64 [%r10], 16;\n"
    body += "mbarrier.arrive.shared.b64 _, [%r10];\n" * 2
    out = np.zeros(1, np.uint32)
    result = run_body(LEADER.format(body=body), out, smem_bytes=64, check_races=False)
    assert result.status is SimStatus.PROTOCOL_ERROR
    assert "1 too many" in str(result)


def test_unknown_barrier_is_an_illegal_access() -> None:
    result = run_body(
        LEADER.format(body="mbarrier.arrive.shared.b64 _, [%r10+8];"), np.zeros(1, np.uint32), smem_bytes=64
    )
    assert result.status is SimStatus.ILLEGAL_ACCESS
    assert "no mbarrier was initialised" in str(result)


PING_PONG = f"""{TWO_BARRIERS}and.b32 %r3, %r1, 31;
setp.ne.u32 %p8, %r3, 0;
mov.u32 %r4, 0;
mov.u32 %r5, 0;
setp.ne.u32 %p2, %r2, 0;
@%p2 bra CONSUMER;
mov.u32 %r6, 1;
PRODUCE:
L1:
mbarrier.try_wait.parity.shared.b64 %p3, [%r10+8], %r6;
@%p3 bra D1;
bra L1;
D1:
st.shared.u32 [%r10+16], %r4;
@%p8 bra S1;
mbarrier.arrive.shared.b64 _, [%r10];
S1:
xor.b32 %r6, %r6, 1;
add.u32 %r4, %r4, 1;
setp.lt.u32 %p4, %r4, 10;
@%p4 bra PRODUCE;
bra END;
CONSUMER:
mov.u32 %r6, 0;
CONSUME:
L2:
mbarrier.try_wait.parity.shared.b64 %p3, [%r10], %r6;
@!%p3 bra L2;
ld.shared.u32 %r7, [%r10+16];
mad.lo.u32 %r5, %r5, 3, %r7;
@%p8 bra S2;
mbarrier.arrive.shared.b64 _, [%r10+8];
S2:
xor.b32 %r6, %r6, 1;
add.u32 %r4, %r4, 1;
setp.lt.u32 %p4, %r4, 10;
@%p4 bra CONSUME;
st.global.u32 [%d1], %r5;
END:
"""


@pytest.mark.parametrize("schedule", ["eager", "random", "slow_tma", "slow_tensor", "slow_epilogue"])
def test_producer_and_consumer(schedule: str) -> None:
    """Ten values through one slot: 3 * (3 * (0) + 1) + 2 ... in order, and no race."""
    expected = 0
    for value in range(10):
        expected = expected * 3 + value
    out = np.zeros(1, np.uint32)
    result = run_body(PING_PONG, out, smem_bytes=64, block=(64, 1, 1), schedule=schedule)
    assert result.ok, str(result)
    assert out.tolist() == [expected]


def test_named_barrier_counts_threads() -> None:
    """Warps 0 and 1 meet at barrier 1 with 64 threads while warp 2 never comes."""
    body = """
    mov.u32 %r1, %tid.x;
    shr.u32 %r2, %r1, 5;
    ld.param.u64 %d1, [out];
    setp.eq.u32 %p1, %r2, 2;
    @%p1 bra END;
    mov.u32 %r10, smem;
    setp.eq.u32 %p2, %r2, 1;
    @%p2 bra WRITER;
    bar.sync 1, 64;
    ld.shared.u32 %r5, [%r10];
    st.global.u32 [%d1], %r5;
    bra END;
    WRITER:
    mov.u32 %r6, 77;
    st.shared.u32 [%r10], %r6;
    bar.arrive 1, 64;
    END:
    """
    out = np.zeros(1, np.uint32)
    result = run_body(body, out, smem_bytes=64, block=(96, 1, 1))
    assert result.ok, str(result)
    assert out.tolist() == [77]


def test_cluster_shared_memory_and_barrier() -> None:
    """Each CTA of a pair writes its rank + 5 into the other's memory and reads its own after the cluster barrier."""
    body = """
    mov.u32 %r1, %cluster_ctarank;
    mov.u32 %r10, smem;
    xor.b32 %r2, %r1, 1;
    mapa.shared::cluster.u32 %r3, %r10, %r2;
    add.u32 %r4, %r1, 5;
    barrier.cluster.arrive.relaxed.aligned;
    barrier.cluster.wait.aligned;
    st.shared::cluster.u32 [%r3], %r4;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    ld.shared.u32 %r5, [%r10];
    ld.param.u64 %d1, [out];
    mad.wide.u32 %d2, %r1, 4, %d1;
    st.global.u32 [%d2], %r5;
    """
    out = np.zeros(2, np.uint32)
    result = run_body(body, out, smem_bytes=64, grid=(2, 1, 1), cluster=(2, 1, 1))
    assert result.ok, str(result)
    assert out.tolist() == [6, 5]


@pytest.mark.parametrize("waits", [True, False])
def test_a_cluster_barrier_is_waited_for_before_the_next_arrival(waits: bool) -> None:
    """Alone in its cluster, a warp completes the phase itself; with others it would be luck that they have come."""
    wait = "barrier.cluster.wait;\n" if waits else ""
    body = f"barrier.cluster.arrive;\n{wait}barrier.cluster.arrive;\nbarrier.cluster.wait;\n"
    result = run_body(body, np.zeros(1, np.uint32), smem_bytes=64)
    assert result.status is (SimStatus.OK if waits else SimStatus.PROTOCOL_ERROR), str(result)
    assert waits or "twice at the cluster barrier without waiting" in str(result)
