"""Acquire and release order what the scope of both holds; lost updates; memory that must not change; reads that are
remembered. PTX ISA "Memory Consistency Model": two operations synchronise if the scope of each includes the other
thread. Every defect has a right neighbour.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.run.run import SimResult
from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import program, run_ptx

START = """
mov.u32 %r1, %tid.x;
mov.u32 %r2, %ctaid.x;
ld.param.u64 %d1, [out];
setp.eq.u32 %p1, %r2, 0;
setp.eq.u32 %p2, %r1, 0;
"""
# CTA 0 writes a word and raises a flag; CTA 1 waits for the flag and reads the word.
HAND_OVER = (
    START
    + """
@!%p2 bra END;
@!%p1 bra OTHER;
st.global.u32 [%d1], 7;
{raise_flag}
bra END;
OTHER:
POLL:
{read_flag}
setp.ne.u32 %p3, %r4, 1;
@%p3 bra POLL;
{after}
ld.global.u32 %r5, [%d1];
st.global.u32 [%d1+8], %r5;
END:
"""
)
RELEASE, ACQUIRE = "st.release.{}.global.u32 [%d1+4], 1;", "ld.acquire.{}.global.u32 %r4, [%d1+4];"
RELAXED_STORE, RELAXED_LOAD = (
    "st.relaxed.gpu.global.u32 [%d1+4], 1;",
    "ld.relaxed.gpu.global.u32 %r4, [%d1+4];",
)


def run(
    body: str, *, cluster: int = 1, threads: int = 32, ctas: int = 2, schedule: str = "eager"
) -> SimResult:
    return run_ptx(
        program(body), np.zeros(64, np.uint32), grid=(ctas, 1, 1), cluster=(cluster, 1, 1), block=(threads, 1, 1),
        smem_bytes=256, schedule=schedule, max_instructions=100_000,
    )  # fmt: skip


def handed_over(release: str, acquire: str, after: str = "", cluster: int = 1) -> SimResult:
    return run(HAND_OVER.format(raise_flag=release, read_flag=acquire, after=after), cluster=cluster)


@pytest.mark.parametrize(
    ("release", "acquire", "cluster", "races"),
    [
        ("gpu", "gpu", 1, False),
        ("sys", "gpu", 1, False),
        ("cta", "gpu", 1, True),
        ("gpu", "cta", 1, True),
        ("cluster", "gpu", 1, True),
        ("gpu", "cluster", 1, True),
        ("cluster", "cluster", 2, False),
        ("gpu", "cluster", 2, False),
        ("cluster", "gpu", 2, False),
        ("cta", "cluster", 2, True),
        ("cluster", "cta", 2, True),
    ],
)
def test_both_scopes_must_hold_both_threads(release: str, acquire: str, cluster: int, races: bool) -> None:
    result = handed_over(RELEASE.format(release), ACQUIRE.format(acquire), cluster=cluster)
    assert result.status is (SimStatus.RACE if races else SimStatus.OK), str(result)
    if races:
        assert "RAW on global memory, byte 0 of out" in str(result)


@pytest.mark.parametrize(
    ("before", "after", "races"),
    [
        ("fence.acq_rel.gpu;", "fence.acq_rel.gpu;", False),
        ("fence.acq_rel.cta;", "fence.acq_rel.gpu;", True),
        ("fence.acq_rel.gpu;", "fence.acq_rel.cta;", True),
        ("fence.acq_rel.cluster;", "fence.acq_rel.gpu;", True),
        ("", "fence.acq_rel.gpu;", True),
        ("fence.acq_rel.gpu;", "", True),
        ("membar.gl;", "membar.gl;", False),
    ],
)
def test_fences_around_relaxed_accesses(before: str, after: str, races: bool) -> None:
    result = handed_over(f"{before}\n{RELAXED_STORE}", RELAXED_LOAD, after)
    assert result.status is (SimStatus.RACE if races else SimStatus.OK), str(result)


def test_a_fence_releases_what_came_before_it() -> None:
    late = "fence.acq_rel.gpu;\nst.global.u32 [%d1], 8;\n" + RELAXED_STORE
    assert handed_over(late, RELAXED_LOAD, "fence.acq_rel.gpu;").status is SimStatus.RACE


# One word carries what is handed over; nothing else orders the two accesses of it.
OF_ITSELF = (
    START
    + """
@!%p2 bra END;
@!%p1 bra OTHER;
{store}
bra END;
OTHER:
POLL:
{load}
setp.ne.u32 %p3, %r4, 7;
@%p3 bra POLL;
st.global.u32 [%d1+8], %r4;
END:
"""
)
STORES = {
    "store": "st.relaxed.{}.global.u32 [%d1], 7;",
    "exch": "atom.relaxed.{}.global.exch.b32 %r9, [%d1], 7;",
    "red": "red.relaxed.{}.global.add.u32 [%d1], 7;",
}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize(
    ("of_store", "of_load", "cluster", "races"),
    [
        ("gpu", "gpu", 1, False),
        ("sys", "gpu", 1, False),
        ("gpu", "cta", 1, True),
        ("gpu", "cluster", 1, True),
        ("cluster", "gpu", 1, True),
        ("cta", "gpu", 1, True),
        ("cluster", "cluster", 2, False),
        ("gpu", "cluster", 2, False),
        ("cluster", "cta", 2, True),
        ("cta", "cluster", 2, True),
    ],
)
def test_relaxed_accesses_are_a_pair_within_their_scopes_only(
    store: str, of_store: str, of_load: str, cluster: int, races: bool
) -> None:
    load = f"ld.relaxed.{of_load}.global.u32 %r4, [%d1];"
    for schedule in ("eager", "random"):
        result = run(
            OF_ITSELF.format(store=STORES[store].format(of_store), load=load),
            cluster=cluster,
            schedule=schedule,
        )
        assert result.status is (SimStatus.RACE if races else SimStatus.OK), str(result)
        if races:
            assert "on global memory, byte 0 of out" in str(result)
            assert "does not hold the other" in str(result)


def test_of_one_cta_the_narrowest_scope_will_do_and_order_for_any() -> None:
    lanes = START.replace("setp.eq.u32 %p1, %r2, 0;", "setp.lt.u32 %p1, %r1, 32;").replace(
        "setp.eq.u32 %p2, %r1, 0;", "and.b32 %r3, %r1, 31;\nsetp.eq.u32 %p2, %r3, 0;"
    )
    store, load = STORES["store"].format("cta"), "ld.relaxed.cta.global.u32 %r4, [%d1];"
    two_warps = OF_ITSELF.replace(START, lanes).format(store=store, load=load)
    assert run(two_warps, ctas=1, threads=64).status is SimStatus.OK
    ordered = HAND_OVER.replace("st.global.u32 [%d1], 7;", "st.relaxed.cta.global.u32 [%d1], 7;").replace(
        "ld.global.u32 %r5, [%d1];", "ld.relaxed.cta.global.u32 %r5, [%d1];"
    )
    handed = ordered.format(raise_flag=RELEASE.format("gpu"), read_flag=ACQUIRE.format("gpu"), after="")
    assert run(handed).status is SimStatus.OK


# Two warps of one CTA hand a word over by a flag in shared memory.
IN_SHARED = (
    START
    + """
mov.u32 %r10, smem;
and.b32 %r3, %r1, 31;
setp.ne.u32 %p4, %r3, 0;
shr.u32 %r6, %r1, 5;
setp.ne.u32 %p5, %r6, 0;
setp.eq.u32 %p6, %r1, 0;
@%p6 st.shared.u32 [%r10], 0;
bar.sync 0;
@%p4 bra END;
@%p5 bra OTHER;
st.shared.u32 [%r10+4], 7;
st.{release}.cta.shared.u32 [%r10], 1;
bra END;
OTHER:
POLL:
ld.{acquire}.cta.shared.u32 %r4, [%r10];
setp.ne.u32 %p3, %r4, 1;
@%p3 bra POLL;
ld.shared.u32 %r5, [%r10+4];
st.global.u32 [%d1], %r5;
END:
"""
)


@pytest.mark.parametrize("release", ["release", "relaxed"])
@pytest.mark.parametrize("acquire", ["acquire", "relaxed"])
def test_ordered_accesses_of_shared_memory(release: str, acquire: str) -> None:
    result = run(IN_SHARED.format(release=release, acquire=acquire), threads=64, ctas=1)
    right = (release, acquire) == ("release", "acquire")
    assert result.status is (SimStatus.OK if right else SimStatus.RACE), str(result)


REMOTE = """
mov.u32 %r1, %tid.x;
mov.u32 %r2, %cluster_ctarank;
mov.u32 %r10, smem;
ld.param.u64 %d1, [out];
setp.eq.u32 %p2, %r1, 0;
setp.eq.u32 %p1, %r2, 0;
@!%p2 bra MADE;
mbarrier.init.shared.b64 [%r10], 1;
fence.mbarrier_init.release.cluster;
MADE:
barrier.cluster.arrive.relaxed.aligned;
barrier.cluster.wait.acquire.aligned;
@!%p2 bra END;
@!%p1 bra OTHER;
st.global.u32 [%d1], 7;
mapa.shared::cluster.u32 %r11, %r10, 1;
{arrive}
bra END;
OTHER:
L: mbarrier.try_wait.parity.shared.b64 %p3, [%r10], 0;
@!%p3 bra L;
ld.global.u32 %r5, [%d1];
END:
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
"""


@pytest.mark.parametrize(
    ("arrive", "races"),
    [
        ("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r11];", False),
        ("mbarrier.arrive.release.cta.shared::cluster.b64 _, [%r11];", True),
        ("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%r11];", True),
        ("fence.acq_rel.cluster;\nmbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%r11];", False),
        ("fence.acq_rel.cta;\nmbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%r11];", True),
    ],
    ids=["cluster", "cta", "relaxed", "fenced", "fenced_for_the_cta"],
)
def test_arrivals_in_another_cta(arrive: str, races: bool) -> None:
    result = run(REMOTE.format(arrive=arrive), cluster=2)
    assert result.status is (SimStatus.RACE if races else SimStatus.OK), str(result)


CLUSTER_BARRIER = """
mov.u32 %r1, %tid.x;
mov.u32 %r2, %cluster_ctarank;
ld.param.u64 %d1, [out];
setp.eq.u32 %p1, %r2, 0;
setp.eq.u32 %p2, %r1, 0;
and.pred %p3, %p1, %p2;
@%p3 st.global.u32 [%d1], 7;
{fence}
barrier.cluster.arrive.{order}.aligned;
barrier.cluster.wait.acquire.aligned;
@%p1 bra END;
ld.global.u32 %r5, [%d1];
END:
"""


@pytest.mark.parametrize(
    ("fence", "order", "races"),
    [
        ("", "release", False),
        ("", "relaxed", True),
        ("fence.acq_rel.cluster;", "relaxed", False),
        ("fence.mbarrier_init.release.cluster;", "relaxed", True),
    ],
)
def test_a_relaxed_cluster_barrier_orders_what_a_fence_released(fence: str, order: str, races: bool) -> None:
    """``fence.mbarrier_init`` is about mbarriers and releases no data."""
    result = run(CLUSTER_BARRIER.format(fence=fence, order=order), cluster=2)
    assert result.status is (SimStatus.RACE if races else SimStatus.OK), str(result)


# One thread of each CTA counts.
COUNT = START + "@!%p2 bra END;\n{before}{count}{behind}END:\n"
SPLIT_UP = "ld.{how}.global.u32 %r4, [%d1];\nadd.u32 %r4, %r4, 1;\nst.{how}.global.u32 [%d1], %r4;\n"
IN_TURN = "T: ld.acquire.gpu.global.u32 %r5, [%d1+4];\nsetp.ne.u32 %p3, %r5, %r2;\n@%p3 bra T;\n"
NEXT_TURN = "add.u32 %r6, %r2, 1;\nst.release.gpu.global.u32 [%d1+4], %r6;\n"


@pytest.mark.parametrize("schedule", ["eager", "random"])
@pytest.mark.parametrize("how", ["volatile", "relaxed.gpu", "weak"])
def test_updates_that_are_no_atomics_get_lost(how: str, schedule: str) -> None:
    result = run(COUNT.format(before="", count=SPLIT_UP.format(how=how), behind=""), schedule=schedule)
    assert result.status is SimStatus.RACE, str(result)
    assert how == "weak" or "lost update on global memory, byte 0 of out" in str(result)


@pytest.mark.parametrize("schedule", ["eager", "random"])
@pytest.mark.parametrize(
    ("before", "count", "behind"),
    [
        ("", "red.relaxed.gpu.global.add.u32 [%d1], 1;\n", ""),
        (IN_TURN, SPLIT_UP.format(how="relaxed.gpu"), NEXT_TURN),
        ("", "ld.volatile.global.u32 %r4, [%d1];\nst.volatile.global.u32 [%d1+128], %r4;\n", ""),
    ],
    ids=["atomic", "one_after_the_other", "stored_elsewhere"],
)
def test_updates_that_are_not_lost(before: str, count: str, behind: str, schedule: str) -> None:
    result = run(COUNT.format(before=before, count=count, behind=behind), schedule=schedule)
    assert result.ok, str(result)


READ_ONLY = START + "@!%p2 bra END;\n{text}\nEND:\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ld.global.nc.u32 %r4, [%d1];\nst.global.u32 [%d1+32], %r4;", False),
        ("ld.global.nc.u32 %r4, [%d1];\nst.global.u32 [%d1], %r4;", True),
        ("st.global.u32 [%d1], 7;\nld.global.nc.u32 %r4, [%d1];", True),
        ("st.global.u32 [%d1], 7;\nld.global.u32 %r4, [%d1];", False),
        ("red.global.add.u32 [%d1], 7;\nld.global.nc.u32 %r4, [%d1];", True),
        ("ld.global.nc.u32 %r4, [%d1];\nst.relaxed.gpu.global.u32 [%d1], 7;", True),
    ],
)
def test_what_nc_reads_must_not_change(text: str, found: bool) -> None:
    """Even in the order of one thread: its cache is not kept up to date."""
    result = run(READ_ONLY.format(text=text), ctas=1)
    assert result.status is (SimStatus.RACE if found else SimStatus.OK), str(result)
    assert ("ld.global.nc" in str(result)) == found


EARLY_READ = START + "@!%p2 bra END;\n@!%p1 bra OTHER;\n{first}\nbra END;\nOTHER:\n{second}\nEND:\n"
FLAG = "st.release.gpu.global.u32 [%d1+4], 1;\n"
AWAIT = "T: ld.acquire.gpu.global.u32 %r5, [%d1+4];\nsetp.ne.u32 %p3, %r5, 1;\n@%p3 bra T;\n"
READ, WRITE = "ld.global.u32 %r4, [%d1];\n", "st.global.u32 [%d1], 7;\n"


@pytest.mark.parametrize(("flag", "wait"), [("", ""), (FLAG, AWAIT)])
def test_a_read_before_the_first_write_is_remembered(flag: str, wait: str) -> None:
    """CTA 0 reads what nobody has written yet, CTA 1 writes it: in order only behind the flag."""
    result = run(EARLY_READ.format(first=READ + flag, second=wait + WRITE), schedule="eager")
    assert result.status is (SimStatus.OK if flag else SimStatus.RACE), str(result)
    assert flag or "WAR on global memory, byte 0 of out" in str(result)


def test_a_reader_is_not_forgotten_for_a_later_one() -> None:
    """CTA 0 reads, then CTA 1 reads and writes: its own read does not hide that of CTA 0."""
    result = run(EARLY_READ.format(first=READ, second=READ + WRITE), schedule="eager")
    assert "WAR on global memory" in str(result)


COPY = """mov.u32 %r10, smem;
mbarrier.init.shared.b64 [%r10], 1;
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 16;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10+64], [%d1], 16, [%r10];
"""
COPIED = "L: mbarrier.try_wait.parity.shared.b64 %p6, [%r10], 0;\n@!%p6 bra L;\n"


@pytest.mark.parametrize(
    ("first", "second", "races"),
    [
        (COPY + COPIED + FLAG, AWAIT + WRITE, False),
        (COPY + FLAG + COPIED, AWAIT + WRITE, True),
        (COPY + COPIED, WRITE, True),
    ],
    ids=["in_order", "flag_before_the_copy_has_come", "no_flag"],
)
def test_what_a_copy_reads_is_remembered(first: str, second: str, races: bool) -> None:
    """The source is read until the barrier's phase completes."""
    result = run(EARLY_READ.format(first=first, second=second), schedule="eager")
    assert result.status is (SimStatus.RACE if races else SimStatus.OK), str(result)
    assert ("st.global overwrites what a copy (counted by mbarrier" in str(result)) == races
