"""A flag that CTAs poll and one of them clears by a plain store: all polls must come before it. PTX ISA, memory
consistency model, "data race": two accesses that conflict, at least one of them not strong, and no causality order.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.run.run import SimResult
from kernel_space.machine.run.schedules import SCHEDULES
from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import run_body

# Words of ``out``: 0 the flag, 1 the count of readers. CTA 0 sets the flag; who counts last clears it.
BODY = """
mov.u32 %r1, %tid.x;
mov.u32 %r2, %ctaid.x;
ld.param.u64 %d1, [out];
setp.eq.u32 %p1, %r1, 0;
setp.eq.u32 %p2, %r2, 0;
and.pred %p3, %p1, %p2;
@%p3 st.release.gpu.global.u32 [%d1], 1;
{poll}{between}
@!%p1 bra DONE;
atom.{order}.gpu.global.add.u32 %r5, [%d1+4], 1;
setp.ne.u32 %p5, %r5, 2;
@%p5 bra DONE;
st.global.u32 [%d1], 0;
DONE:
"""
POLL = "POLL: ld.acquire.gpu.global.u32 %r4, [%d1];\nsetp.eq.u32 %p4, %r4, 0;\n@%p4 bra POLL;\n"
MEET = "bar.sync 0;\n"


def run(order: str, poll: str, between: str, schedule: str) -> SimResult:
    body = BODY.format(order=order, poll=poll, between=between)
    return run_body(body, np.zeros(2, np.uint32), block=(64, 1, 1), grid=(3, 1, 1), smem_bytes=64, sms=3,
                    schedule=schedule, max_instructions=20_000)  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_all_have_polled(schedule: str) -> None:
    result = run("acq_rel", POLL, MEET, schedule)
    assert result.ok, str(result)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_count_that_releases_nothing(schedule: str) -> None:
    result = run("relaxed", POLL, MEET, schedule)
    assert result.status is SimStatus.RACE and "on global memory, byte 0 of out" in str(result)


def test_a_count_before_all_warps_have_polled() -> None:
    """Where warp 1 polls late it waits for ever; elsewhere its poll and the store are a race. Some schedule sees it."""
    found = {run("acq_rel", POLL, "", schedule).status for schedule in SCHEDULES}
    assert found & {SimStatus.RACE, SimStatus.DEADLOCK, SimStatus.BUDGET_EXCEEDED}
