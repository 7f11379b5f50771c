"""Lanes of one warp hand each other words of shared memory behind a meeting, as PTX ISA "bar.warp.sync" wants; what one
lane releases holds the reads of others only then. In each pair one program lacks the meeting.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.run.run import SimResult
from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import run_body

START = """
mov.u32 %r1, %tid.x;
mov.u32 %r10, smem;
ld.param.u64 %d1, [out];
mad.lo.u32 %r11, %r1, 4, %r10;
xor.b32 %r12, %r1, 1;
mad.lo.u32 %r13, %r12, 4, %r10;
mad.wide.u32 %d2, %r1, 4, %d1;
mov.u32 %r20, 0;
setp.eq.u32 %p1, %r1, 3;
"""
OWN, OTHERS = "st.shared.u32 [%r11], %r1;\n", "ld.shared.u32 %r20, [%r13];\n"
MEETING = "bar.warp.sync -1;\n"
SENT = "st.global.u32 [%d2], %r20;\n"


def run(body: str, out: np.ndarray | None = None, threads: int = 32) -> SimResult:
    values = np.zeros(64, np.uint32) if out is None else out
    return run_body(START + body + SENT, values, block=(threads, 1, 1), smem_bytes=4096)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (OWN + MEETING + OTHERS, ""),
        (OWN + OTHERS, "RAW"),
        (OWN + "ld.shared.u32 %r20, [%r11];\n", ""),
        (OWN + "shfl.sync.idx.b32 %r21, %r1, 0, 31, -1;\n" + OTHERS, ""),
        (OWN + "barrier.cluster.arrive;\nbarrier.cluster.wait;\n" + OTHERS, ""),
        (OWN + "barrier.sync 0;\n" + OTHERS, ""),
        (OWN + MEETING + OTHERS + MEETING + OWN, ""),
        (OWN + MEETING + OTHERS + OWN, "WAR"),
        ("@%p1 st.shared.u32 [%r10+128], %r1;\n" + MEETING + "ld.shared.u32 %r20, [%r10+128];\n", ""),
        ("@%p1 st.shared.u32 [%r10+128], %r1;\nld.shared.u32 %r20, [%r10+128];\n", "RAW"),
        ("st.shared.u32 [%r10+128], 9;\nld.shared.u32 %r20, [%r10+128];\n", ""),
        ("st.shared.u16 [%r11], 9;\nst.shared.u16 [%r11+2], 9;\n" + OTHERS, ""),
    ],
    ids=[
        "met", "no_meeting", "own_word", "shuffled", "cluster_barrier",
        "barrier_not_aligned", "met_twice", "overwritten_early", "one_lane_writes",
        "one_lane_writes_unmet", "every_lane_writes_one_word", "halves_of_words_are_not_looked_at",
    ],
)  # fmt: skip
def test_lanes_meet_between_a_write_and_a_read_of_another(body: str, found: str) -> None:
    result = run(body)
    assert result.status is (SimStatus.RACE if found else SimStatus.OK), str(result)
    assert found in str(result) and ("of the same warp" in str(result)) == bool(found)


# Warp 0 reads what warp 1 will overwrite once a barrier of one arrival says so.
HANDED_BACK = """
setp.ne.u32 %p2, %r1, 0;
@%p2 bra READY;
mbarrier.init.shared.b64 [%r10+2048], 1;
READY: bar.sync 0;
setp.ge.u32 %p3, %r1, 32;
@%p3 bra WRITER;
ld.shared.u32 %r20, [%r11];
{meeting}
@%p2 bra DONE;
mbarrier.arrive.shared.b64 _, [%r10+2048];
bra DONE;
WRITER: mbarrier.try_wait.parity.shared.b64 %p4, [%r10+2048], 0;
@!%p4 bra WRITER;
{write}
DONE: mov.u32 %r20, 0;
"""
OVERWRITES = "st.shared.u32 [%r11+-128], %r1;\n"


@pytest.mark.parametrize(
    ("meeting", "write", "found"),
    [
        (MEETING, OVERWRITES, False),
        ("", OVERWRITES, True),
        ("", "", False),
        ("elect.sync _|%p6, -1;\n", OVERWRITES, False),
    ],
    ids=["met", "no_meeting", "nobody_overwrites", "elected"],
)
def test_one_lane_hands_back_what_all_have_read_only_behind_a_meeting(
    meeting: str, write: str, found: bool
) -> None:
    result = run(HANDED_BACK.format(meeting=meeting, write=write), threads=64)
    assert result.status is (SimStatus.RACE if found else SimStatus.OK), str(result)
    if found:
        assert "WAR" in str(result)


COPIES = """
mad.lo.u32 %r14, %r1, 16, %r10;
mad.wide.u32 %d3, %r1, 16, %d1;
cp.async.cg.shared.global [%r14], [%d3], 16;
cp.async.commit_group;
"""
WRITES = "mad.lo.u32 %r14, %r1, 16, %r10;\nst.shared.v4.b32 [%r14], {%r1, %r1, %r1, %r1};\n"
MATRIX = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r20, %r21, %r22, %r23}, [%r14];\n"
WAITED = "cp.async.wait_group 0;\n"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (COPIES + WAITED + MEETING + MATRIX, ""),
        (COPIES + WAITED + MATRIX, "RAW"),
        (COPIES + MEETING + WAITED + MATRIX, "RAW"),
        (COPIES + WAITED + "ld.shared.u32 %r20, [%r14];\n", ""),
        (COPIES + MEETING + WAITED + "xor.b32 %r15, %r14, 16;\nld.shared.u32 %r20, [%r15];\n", "RAW"),
        (WRITES + MEETING + MATRIX, ""),
        (WRITES + MATRIX, "RAW"),
        (WRITES + MEETING + MATRIX + WRITES + MEETING + MATRIX, ""),
    ],
    ids=[
        "copied", "no_meeting", "met_before_the_wait", "own_copy", "anothers_copy", "stored", "stored_unmet",
        "overwritten_behind_ldmatrix",
    ],
)  # fmt: skip
def test_a_matrix_is_loaded_behind_a_meeting(body: str, found: str) -> None:
    """PTX ISA: a wait for ``cp.async`` is the executing thread's; ``ldmatrix.sync`` makes lanes wait, no more."""
    result = run(body, np.zeros(256, np.uint32))
    assert result.status is (SimStatus.RACE if found else SimStatus.OK), str(result)
    assert found in str(result) and ("of the same warp" in str(result)) == bool(found)


STORED_MATRIX = """
mad.lo.u32 %r14, %r1, 16, %r10;
xor.b32 %r15, %r14, 16;
stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r14], {%r1, %r1, %r1, %r1};
"""
OWN_ROW, ANOTHERS_ROW = "ld.shared.u32 %r20, [%r14];\n", "ld.shared.u32 %r20, [%r15];\n"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (STORED_MATRIX + MEETING + ANOTHERS_ROW, ""),
        (STORED_MATRIX + ANOTHERS_ROW, "RAW"),
        (STORED_MATRIX + OWN_ROW, "RAW"),
        (STORED_MATRIX + MATRIX, "RAW"),
        (STORED_MATRIX + MEETING + MATRIX, ""),
        (STORED_MATRIX + STORED_MATRIX.replace("[%r14]", "[%r14+512]") + ANOTHERS_ROW, ""),
    ],
    ids=["met", "no_meeting", "pointed_at_by_the_reader", "loaded_unmet", "loaded", "met_by_the_next"],
)
def test_what_stmatrix_writes_is_there_for_others_behind_a_meeting(body: str, found: str) -> None:
    """PTX ISA "stmatrix": a row is of four lanes' registers, and ``.sync`` makes lanes wait before it, no more."""
    result = run(body)
    assert result.status is (SimStatus.RACE if found else SimStatus.OK), str(result)
    assert found in str(result) and ("of the same warp" in str(result)) == bool(found)


BARRIER = "@%p1 mbarrier.init.shared.b64 [%r10+2048], {};\n" + MEETING
PHASE = "W: mbarrier.try_wait.parity.shared.b64 %p3, [%r10+2048], {};\n@!%p3 bra W;\n"
ARRIVE = "mbarrier.arrive.shared.b64 _, [%r10+2048];\n"


@pytest.mark.parametrize(
    ("count", "before", "parity", "meeting", "found"),
    [
        (1, "", 1, "", "RAW"),
        (1, "", 1, MEETING, ""),
        (32, ARRIVE, 0, "", ""),
        (1, "@%p1 " + ARRIVE, 0, "", "RAW"),
        (1, "@%p1 st.shared.u32 [%r10+512], %r1;\n@%p1 " + ARRIVE + "ADDRESS", 0, "", ""),
    ],
    ids=["done_before", "done_and_met", "all_lanes_arrive", "one_lane_arrives", "one_lane_wrote_and_arrives"],
)
def test_a_wait_on_an_mbarrier_is_a_meeting_of_lanes_that_arrived(
    count: int, before: str, parity: int, meeting: str, found: str
) -> None:
    """Each lane waits for the phase, not for the others: one may be through while another has not stored yet. Where
    the phase needs every lane's arrival it does wait for them.
    """
    own, others = OWN, OTHERS
    if before.endswith("ADDRESS"):  # one lane hands its word to all
        before, own, others = before.removesuffix("ADDRESS"), "", "ld.shared.u32 %r20, [%r10+512];\n"
    result = run(BARRIER.format(count) + own + before + PHASE.format(parity) + meeting + others)
    assert result.status is (SimStatus.RACE if found else SimStatus.OK), str(result)
    assert found in str(result)


STORE = "cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r10], 128;\ncp.async.bulk.commit_group;\n"
STORE += "cp.async.bulk.wait_group 0;\n"
FENCE, ONE = "fence.proxy.async.shared::cta;\n", "setp.ne.u32 %p2, %r1, 0;\n@%p2 bra BEHIND;\n"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (OWN + FENCE + MEETING + ONE + STORE + "BEHIND:\n", False),
        (OWN + FENCE + ONE + STORE + "BEHIND:\n", True),
        (MEETING + OWN + FENCE + ONE + STORE + "BEHIND:\n", True),
        (OWN + FENCE + "elect.sync %r9|%p2, -1;\n@!%p2 bra BEHIND;\n" + STORE + "BEHIND:\n", False),
    ],
    ids=["met", "unmet", "met too early", "elected"],
)
def test_a_bulk_store_sends_what_other_lanes_wrote_before_they_met(body: str, found: bool) -> None:
    result = run_body(START + body, np.zeros(64, np.uint32), block=(32, 1, 1), smem_bytes=4096)
    assert result.status is (SimStatus.RACE if found else SimStatus.OK), str(result)
    assert ("a bulk store reads what" in str(result)) == found
