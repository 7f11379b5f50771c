"""``fence.proxy.async``: it covers what was written before it, in the space that it names. PTX ISA "membar / fence",
"Proxies". In each pair the second program differs from the first by the defect alone.
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
setp.eq.u32 %p1, %r1, 0;
"""
WRITE = "st.shared.u32 [%r11], %r1;\n"
SHARED, GLOBAL, BOTH = (f"fence.proxy.async{space};\n" for space in (".shared::cta", ".global", ""))
SENT = """bar.sync 0;
@!%p1 bra SENT;
cp.async.bulk.global.shared::cta.bulk_group [%d1+256], [%r10], 128;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
SENT:
"""
# The bulk copy reads global words that this CTA has just written, into shared memory at 512.
FETCHED = """bar.sync 0;
@!%p1 bra FETCHED;
mbarrier.init.shared.b64 [%r10+1024], 1;
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared.b64 _, [%r10+1024], 128;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10+512], [%d1], 128, [%r10+1024];
WAITS: mbarrier.try_wait.parity.shared.b64 %p4, [%r10+1024], 0;
@!%p4 bra WAITS;
FETCHED:
"""
STORE = "st.global.u32 [%d2], %r1;\n"


def run(body: str) -> SimResult:
    return run_body(START + body, np.zeros(128, np.uint32), block=(64, 1, 1), smem_bytes=2048)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (WRITE + SHARED + SENT, False),
        (WRITE + BOTH + SENT, False),
        (WRITE + GLOBAL + SENT, True),
        (SHARED + WRITE + SENT, True),
        (WRITE + SHARED + "st.shared.u32 [%r11], 7;\n" + SENT, True),
        (WRITE + "st.shared.u32 [%r11], 7;\n" + SHARED + SENT, False),
        (STORE + GLOBAL + FETCHED, False),
        (STORE + BOTH + FETCHED, False),
        (STORE + SHARED + FETCHED, True),
        (GLOBAL + STORE + FETCHED, True),
    ],
    ids=[
        "shared_of_shared", "all_of_shared", "global_of_shared", "shared_before_the_write", "the_last_write_behind",
        "behind_the_last_write", "global_of_global", "all_of_global", "shared_of_global", "global_before_the_write",
    ],
)  # fmt: skip
def test_a_fence_covers_earlier_writes_in_its_space(body: str, found: bool) -> None:
    result = run(body)
    assert result.status is (SimStatus.RACE if found else SimStatus.OK), str(result)
    if found:
        assert "RAW on" in str(result)


def test_a_fence_behind_the_barrier_covers_what_the_barrier_brought() -> None:
    """The one thread that issues the store may fence for all that it has waited for."""
    fenced = SENT.replace("cp.async.bulk.global", SHARED + "cp.async.bulk.global")
    assert run(WRITE + fenced).ok, str(run(WRITE + fenced))
    assert run(WRITE + SENT).status is SimStatus.RACE
