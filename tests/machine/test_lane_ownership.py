"""Commits, bulk groups, their waits and fences belong to the lanes that executed them; ``.aligned`` needs the warp.

PTX ISA "cp.async.bulk.commit_group" (of the executing thread), "tcgen05.commit" (operations that the executing thread
initiated), "bar.sync" (all threads in the warp must execute the same instruction). Every defect has a right neighbour.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.run.run import SimResult
from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import TWO_BARRIERS, run_body

START = """
mov.u32 %r1, %tid.x;
and.b32 %r3, %r1, 31;
mov.u32 %r10, smem;
ld.param.u64 %d1, [out];
mad.lo.u32 %r11, %r1, 4, %r10;
setp.eq.u32 %p1, %r1, 0;
setp.eq.u32 %p2, %r1, 1;
setp.lt.u32 %p3, %r1, 8;
"""
WRITE = "st.shared.u32 [%r11], %r1;\n"
FENCE = "fence.proxy.async.shared::cta;\n"
STORE = "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r10], 128;\n"
COMMIT = "cp.async.bulk.commit_group;\n"
WAIT = "cp.async.bulk.wait_group.read 0;\n"


def run(body: str, *, threads: int = 32, words: int = 32) -> SimResult:
    return run_body(START + body, np.zeros(words, np.uint32), block=(threads, 1, 1), smem_bytes=2048)


def by_lane(guard: str, text: str) -> str:
    """Text that one lane executes, as compilers write it: behind a branch."""
    label = f"PAST{abs(hash((guard, text))) % 10**8}"
    return f"@!{guard} bra {label};\n{text}{label}:\n"


def stored(commit: str, wait: str, after: str = "bar.sync 0;\n" + WRITE) -> str:
    return WRITE + FENCE + "bar.sync 0;\n" + STORE + commit + wait + after


@pytest.mark.parametrize(
    ("commit", "wait", "races"),
    [
        ("@%p1 " + COMMIT, by_lane("%p1", WAIT), False),
        (COMMIT, WAIT, False),
        ("@%p2 " + COMMIT, by_lane("%p1", WAIT), True),
        ("@%p1 " + COMMIT, by_lane("%p2", WAIT), True),
    ],
    ids=["the_lane_itself", "all_lanes", "another_commits", "another_waits"],
)
def test_a_bulk_group_is_that_of_its_lane(commit: str, wait: str, races: bool) -> None:
    """The source is written again behind the wait: right only if the lane that stores has waited for its own group."""
    result = run(stored(commit, wait))
    assert result.status is (SimStatus.RACE if races else SimStatus.OK), str(result)
    if races:
        assert "what bulk reads of warp0 reads" in str(result)


@pytest.mark.parametrize("pending", [0, 1])
def test_each_lane_counts_its_own_groups(pending: int) -> None:
    """Lane 0 has two groups, lane 1 one: with one allowed to be pending, lane 0 knows only its first."""
    second = "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%d1+128], [%r10+128], 16;\n"
    third = "@%p2 cp.async.bulk.global.shared::cta.bulk_group [%d1+256], [%r10+256], 16;\n"
    fill = "st.shared.u32 [%r11+128], %r1;\nst.shared.u32 [%r11+256], %r1;\n" + FENCE + "bar.sync 0;\n"
    groups = STORE + "@%p1 " + COMMIT + second + "@%p1 " + COMMIT + third + "@%p2 " + COMMIT
    wait = by_lane("%p3", f"cp.async.bulk.wait_group.read {pending};\n")
    again = "bar.sync 0;\nst.shared.u32 [%r11+{}], %r1;\n"
    whole = WRITE + fill + groups + wait
    first = run(whole + again.format(0) + by_lane("%p3", "cp.async.bulk.wait_group 0;\n"), words=96)
    other = run(whole + again.format(128) + by_lane("%p3", "cp.async.bulk.wait_group 0;\n"), words=96)
    assert first.ok, str(first)
    assert other.ok == (pending == 0), str(other)


@pytest.mark.parametrize(
    ("fence", "races"),
    [
        (FENCE, False),
        (by_lane("%p1", FENCE), True),
        (by_lane("%p3", FENCE), True),
        ("bar.warp.sync 0xffffffff;\n" + by_lane("%p1", FENCE), False),
    ],
    ids=["all", "one", "eight", "one_behind_a_barrier"],
)
def test_a_fence_of_one_lane_says_nothing_of_the_others_writes(fence: str, races: bool) -> None:
    """32 lanes write what a bulk store reads. A lane fences its own writes, and those it is ordered behind."""
    result = run(WRITE + fence + "bar.sync 0;\n" + STORE + "@%p1 " + COMMIT + by_lane("%p1", WAIT))
    assert result.status is (SimStatus.RACE if races else SimStatus.OK), str(result)
    if races:
        assert "no fence.proxy.async lies between them" in str(result)


ARRIVAL = (
    TWO_BARRIERS
    + """
and.b32 %r3, %r1, 31;
setp.eq.u32 %p3, %r3, 0;
mad.lo.u32 %r11, %r3, 4, %r10;
setp.ne.u32 %p2, %r2, 0;
@%p2 bra READER;
st.shared.u32 [%r11+64], %r1;
{sync}
@!%p3 bra DONE;
mbarrier.arrive.shared.b64 _, [%r10];
bra DONE;
READER:
L: mbarrier.try_wait.parity.shared.b64 %p4, [%r10], 0;
@!%p4 bra L;
ld.shared.u32 %r5, [%r11+64];
DONE:
"""
)


@pytest.mark.parametrize("sync", ["", "bar.warp.sync 0xffffffff;"])
def test_an_arrival_of_one_lane_releases_what_it_knows(sync: str) -> None:
    """32 lanes write, one arrives: it knows of the other 31 writes only behind a barrier of the warp."""
    result = run_body(ARRIVAL.format(sync=sync), np.zeros(1, np.uint32), block=(64, 1, 1), smem_bytes=512)
    assert result.status is (SimStatus.OK if sync else SimStatus.RACE), str(result)


TENSOR = """
mov.u32 %r1, %tid.x;
shr.u32 %r2, %r1, 5;
mov.u32 %r10, smem;
setp.eq.u32 %p1, %r1, 0;
setp.eq.u32 %p2, %r2, 0;
setp.eq.u32 %p3, %r1, {commits};
st.shared.u32 [%r10+1024], 0;
fence.proxy.async;
@!%p1 bra READY;
mbarrier.init.shared.b64 [%r10], 1;
READY:
@!%p2 bra MADE;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r10+16], 32;
MADE:
bar.sync 0;
ld.shared.u32 %r3, [%r10+16];
@!%p1 bra ISSUED;
mov.b64 %d5, 0x0000400800000040;
shr.u32 %r12, %r10, 4;
add.u32 %r12, %r12, 64;
cvt.u64.u32 %d6, %r12;
or.b64 %d5, %d6, 0x0000400800000000;
tcgen05.cp.cta_group::1.32x128b.warpx4 [%r3], %d5;
ISSUED:
@!%p3 bra COMMITTED;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r10];
COMMITTED:
L: mbarrier.try_wait.parity.shared.b64 %p4, [%r10], 0;
@!%p4 bra L;
@!%p2 bra END;
tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r4}}, [%r3];
tcgen05.wait::ld.sync.aligned;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r3, 32;
END:
"""


@pytest.mark.parametrize("commits", [0, 7])
def test_a_commit_is_for_the_operations_of_its_lane(commits: int) -> None:
    """Lane 0 copies to tensor memory; a commit by lane 7 completes without it."""
    result = run_body(
        TENSOR.format(commits=commits), np.zeros(1, np.uint32), block=(32, 1, 1), smem_bytes=4096
    )
    assert ("RAW on TMEM" in str(result)) == (commits == 7), str(result)
    assert result.status is (SimStatus.RACE if commits else SimStatus.OK), str(result)


COLLECTIVES = [
    "bar.sync 0;",
    "bar.arrive 1, 64;",
    "barrier.cluster.arrive.aligned;",
    "barrier.sync.aligned 0;",
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r10], 32;",
    "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;",
    "tcgen05.wait::ld.sync.aligned;",
    "tcgen05.wait::st.sync.aligned;",
]


@pytest.mark.parametrize("text", COLLECTIVES)
def test_an_aligned_collective_needs_the_whole_warp(text: str) -> None:
    result = run(by_lane("%p3", text + "\n") + WRITE)
    assert result.status is SimStatus.PROTOCOL_ERROR
    assert "needs the whole warp together; 24 lanes (first 8, last 31) of warp0 went another way" in str(
        result
    )


@pytest.mark.parametrize(
    "body",
    [
        "bar.sync 0;",
        "@%p3 bra A;\nadd.u32 %r4, %r1, 1;\nA:\nbar.sync 0;",
        "@!%p3 bra DONE;\nbar.sync 0;\nDONE:",
    ],
    ids=["together", "together_again", "the_others_have_ended"],
)
def test_an_aligned_collective_of_all_lanes_that_are_left(body: str) -> None:
    assert run(body).ok, str(run(body))
