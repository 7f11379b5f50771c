"""Flags and plain accesses: of a flag that CTAs poll and one of them clears by a plain store all polls must come before
it; nor may a plain load look whether a strong store has come. PTX ISA, memory consistency model, "data race": two
accesses that conflict, at least one of them not strong, and no causality order.
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


# Words of ``out``: 0 what CTA 0 changes, 1 a flag. ``{how}`` of the other CTA: when it looks at word 0.
LOOK = """
mov.u32 %r2, %ctaid.x;
ld.param.u64 %d1, [out];
setp.ne.u32 %p2, %r2, 0;
@%p2 bra OTHER;
{change}
st.release.gpu.global.u32 [%d1+4], 1;
bra DONE;
OTHER:
{wait}
{look}
DONE:
"""
CHANGES = {
    "store": "st.relaxed.gpu.global.u32 [%d1], 7;",
    "atomic": "red.relaxed.gpu.global.add.u32 [%d1], 7;",
}
AWAIT = "POLL: ld.{how}.gpu.global.u32 %r4, [%d1+4];\nsetp.eq.u32 %p4, %r4, 0;\n@%p4 bra POLL;\n"


def looked(change: str, wait: str, look: str, schedule: str) -> SimResult:
    body = LOOK.format(change=CHANGES[change], wait=wait, look=look)
    return run_body(body, np.zeros(2, np.uint32), block=(1, 1, 1), grid=(2, 1, 1), smem_bytes=64, sms=2,
                    schedule=schedule, max_instructions=20_000)  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_plain_load_behind_an_acquire(change: str, schedule: str) -> None:
    result = looked(change, AWAIT.format(how="acquire"), "ld.global.u32 %r5, [%d1];", schedule)
    assert result.ok, str(result)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("wait", ["", AWAIT.format(how="relaxed")], ids=["at once", "behind a relaxed poll"])
def test_a_plain_load_that_nothing_orders(wait: str, change: str, schedule: str) -> None:
    """Whichever comes first: the load, or what changes the word."""
    result = looked(change, wait, "ld.global.u32 %r5, [%d1];", schedule)
    assert result.status is SimStatus.RACE and "on global memory, byte 0 of out" in str(result)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_strong_load_needs_no_order(change: str, schedule: str) -> None:
    result = looked(change, "", "ld.relaxed.gpu.global.u32 %r5, [%d1];", schedule)
    assert result.ok, str(result)
