"""``cp.async``: what it brings may be read behind a wait for its group, by the threads that have waited. PTX ISA
"cp.async.wait_group", "cp.async.mbarrier.arrive". A program that counts on it earlier is a race.
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
mad.wide.u32 %d2, %r1, 4, %d1;
xor.b32 %r12, %r1, 32;
mad.lo.u32 %r13, %r12, 4, %r10;
setp.lt.u32 %p1, %r1, 16;
"""
COPY = "cp.async.ca.shared.global [%r11], [%d2], 4;\n"
MORE = "cp.async.ca.shared.global [%r11+1024], [%d2], 4;\n"
COMMIT = "cp.async.commit_group;\n"
OWN = "ld.shared.u32 %r20, [%r11];\n"
OTHER = "ld.shared.u32 %r20, [%r13];\n"  # what the other warp has brought
WAIT = "cp.async.wait_group {};\n"
BARRIER = "bar.sync 0;\n"
SENT = "st.global.u32 [%d2+256], %r20;\n"


def run(body: str, out: np.ndarray | None = None) -> SimResult:
    values = np.arange(128, dtype=np.uint32) if out is None else out
    return run_body(START + body + SENT, values, block=(64, 1, 1), smem_bytes=4096)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (COPY + COMMIT + WAIT.format(0) + OWN, False),
        (COPY + COMMIT + OWN, True),
        (COPY + COMMIT + WAIT.format(1) + OWN, True),
        (COPY + COMMIT + MORE + COMMIT + WAIT.format(1) + OWN, False),
        (COPY + MORE + COMMIT + WAIT.format(1) + OWN, True),
        (COPY + WAIT.format(0) + OWN, True),
        (COPY + "cp.async.wait_all;\n" + OWN, False),
        (COPY + COMMIT + WAIT.format(0) + BARRIER + OTHER, False),
        (COPY + COMMIT + BARRIER + WAIT.format(0) + OTHER, True),
        (COPY + COMMIT + BARRIER + OTHER, True),
        (COPY + COMMIT + "@%p1 " + WAIT.format(0) + OWN, True),
        (COPY + COMMIT + "st.shared.u32 [%r11], %r1;\n" + OWN, True),
    ],
    ids=[
        "waited", "no_wait", "one_group_too_many", "an_older_group", "one_group_of_both", "no_commit", "wait_all",
        "waited_and_synced", "synced_before_the_wait", "synced_alone", "half_of_the_lanes", "overwritten_under_way",
    ],
)  # fmt: skip
def test_what_is_copied_may_be_used_behind_a_wait_for_its_group(body: str, found: bool) -> None:
    result = run(body)
    assert result.status is (SimStatus.RACE if found else SimStatus.OK), str(result)
    if found:
        assert "cp.async" in str(result)


@pytest.mark.parametrize(("arrive", "found"), [("cp.async.mbarrier.arrive.noinc.shared.b64", False),
                                               ("mbarrier.arrive.shared.b64 _,", True)])  # fmt: skip
def test_an_arrival_of_the_copies_releases_them_and_a_plain_one_does_not(arrive: str, found: bool) -> None:
    body = f"""
setp.ne.u32 %p2, %r1, 0;
@%p2 bra READY;
mbarrier.init.shared.b64 [%r10+2048], 64;
READY: bar.sync 0;
{COPY}{arrive} [%r10+2048];
WAITS: mbarrier.try_wait.parity.shared.b64 %p4, [%r10+2048], 0;
@!%p4 bra WAITS;
{OTHER}"""
    values = np.arange(128, dtype=np.uint32)
    result = run(body, values)
    assert result.status is (SimStatus.RACE if found else SimStatus.OK), str(result)
    assert values[64:].tolist() == [thread ^ 32 for thread in range(64)]


def test_what_is_copied_is_a_generic_write_to_the_async_proxy() -> None:
    """A bulk store of it needs a proxy fence behind the wait."""
    sent = """bar.sync 0;
@!%p5 bra SENT;
cp.async.bulk.global.shared::cta.bulk_group [%d1+256], [%r10], 256;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
SENT: mov.u32 %r20, 0;
bar.sync 0;
ld.shared.u32 %r20, [%r11];
"""
    body = "setp.eq.u32 %p5, %r1, 0;\n" + COPY + COMMIT + WAIT.format(0)
    results = [
        run_body(START + text + sent, np.zeros(128, np.uint32), block=(64, 1, 1), smem_bytes=4096)
        for text in (body, body + "fence.proxy.async.shared::cta;\n")
    ]
    assert [result.status for result in results] == [SimStatus.RACE, SimStatus.OK], list(map(str, results))


@pytest.mark.parametrize(
    ("to", "come", "found"),
    [("%r10", "%d1", False), ("%r10", "%d2", True), ("%r11", "%d1", False)],
    ids=["one_word_by_all", "several_words_to_one_place", "one_word_to_several_places"],
)
def test_lanes_of_one_copy_may_bring_the_same_bytes_to_the_same_place(
    to: str, come: str, found: bool
) -> None:
    """A scale that a whole warp needs: which lane writes last is undefined, and no matter where the bytes are one's."""
    body = f"""setp.gt.u32 %p2, %r1, 31;
@%p2 bra READY;
cp.async.ca.shared.global [{to}], [{come}], 4;
cp.async.wait_all;
READY: bar.sync 0;
ld.shared.u32 %r20, [%r10];
"""
    values = np.arange(5, 133, dtype=np.uint32)
    result = run(body, values)
    assert result.status is (SimStatus.RACE if found else SimStatus.OK), str(result)
    if not found:
        assert values[64:].tolist() == [5] * 64


def test_a_copy_by_all_lanes_to_one_place_is_waited_for_by_all() -> None:
    """Half of the lanes have not waited for theirs."""
    body = (
        f"setp.gt.u32 %p2, %r1, 31;\n@%p2 bra READY;\ncp.async.ca.shared.global [%r10], [%d1], 4;\n{COMMIT}"
    )
    body += f"@%p1 {WAIT.format(0)}READY: {BARRIER}ld.shared.u32 %r20, [%r10];\n"
    assert run(body).status is SimStatus.RACE
