"""Threads that have exited are not waited for. PTX ISA "exit": as threads exit, barriers that wait for all threads of
the CTA are released if the exiting threads are the only ones that have not arrived. A count still means that many.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import run_body

# Warp 3 exits; of the other 96 threads each hands its number to the one 32 on, by way of shared memory.
BODY = """
mov.u32 %r1, %tid.x;
ld.param.u64 %d1, [out];
mov.u32 %r10, smem;
setp.ge.u32 %p1, %r1, 96;
{first}
@%p1 bra GONE;
{slow}
mad.lo.u32 %r11, %r1, 4, %r10;
st.shared.u32 [%r11], %r1;
{barrier}
add.u32 %r2, %r1, 32;
rem.u32 %r2, %r2, 96;
mad.lo.u32 %r12, %r2, 4, %r10;
ld.shared.u32 %r3, [%r12];
mad.wide.u32 %d2, %r1, 4, %d1;
st.global.u32 [%d2], %r3;
ret;
GONE: {last}
exit;
"""
SLOW = "mov.u32 %r5, 0;\nAGAIN: add.u32 %r5, %r5, 1;\nsetp.lt.u32 %p3, %r5, 200;\n@%p3 bra AGAIN;"


@pytest.mark.parametrize("schedule", ["eager", "random"])
@pytest.mark.parametrize(("slow", "last"), [(SLOW, ""), ("", SLOW)], ids=["exits_first", "exits_last"])
@pytest.mark.parametrize("barrier", ["bar.sync 0;", "barrier.sync 0;", "bar.red.popc.u32 %r6, 0, %p1;"])
def test_a_barrier_of_all_threads_does_not_wait_for_exited_ones(
    barrier: str, slow: str, last: str, schedule: str
) -> None:
    for first in ("", "bar.sync 0;"):
        out = np.full(96, 7, np.uint32)
        body = BODY.format(first=first, slow=slow, last=last, barrier=barrier)
        result = run_body(body, out, block=(128, 1, 1), smem_bytes=1024, schedule=schedule)
        assert result.ok, str(result)
        assert out.tolist() == [(thread + 32) % 96 for thread in range(96)]


def test_a_barrier_with_a_count_waits_for_that_many() -> None:
    body = BODY.format(first="", slow="", last="", barrier="bar.sync 0, 128;")
    result = run_body(body, np.zeros(96, np.uint32), block=(128, 1, 1), smem_bytes=1024)
    assert result.status is SimStatus.DEADLOCK, str(result)


def test_what_an_exited_thread_wrote_is_not_ordered() -> None:
    """The barrier that its exit releases is not one that it has arrived at."""
    body = BODY.format(first="", slow="", last="st.shared.u32 [%r10+64], 5;", barrier="bar.sync 0;")
    result = run_body(body, np.zeros(96, np.uint32), block=(128, 1, 1), smem_bytes=1024)
    assert result.status is SimStatus.RACE, str(result)
