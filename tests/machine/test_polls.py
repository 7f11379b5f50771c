"""A warp that polls a flag in global memory runs for ever by itself: what it polls for must come about under every
schedule, whatever the schedule holds back. A card has no order in which it would not.

Oracle: a flag is set once, behind a copy, another warp or another CTA; so every program here ends with the word copied.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.run.schedules import SCHEDULES
from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import run_body

# Of out: the word to copy at 0, the copy at 128, the flag at 256. ``who``: the threads (CTA * 64 + tid) that set it.
SET_AND_POLLED = """
mov.u32 %r1, %tid.x;
mov.u32 %r10, smem;
ld.param.u64 %d1, [out];
mov.u32 %r2, %ctaid.x;
mad.lo.u32 %r3, %r2, 64, %r1;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra READY;
mbarrier.init.shared.b64 [%r10+1024], 1;
READY:
bar.sync 0;
shr.u32 %r4, %r3, 5;
setp.ne.u32 %p2, %r4, {setter};
@%p2 bra POLL;
and.b32 %r5, %r3, 31;
setp.ne.u32 %p3, %r5, 0;
@%p3 bra LOADED;
mbarrier.arrive.expect_tx.shared.b64 _, [%r10+1024], 16;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10], [%d1], 16, [%r10+1024];
LOADED:
mbarrier.try_wait.parity.shared.b64 %p4, [%r10+1024], 0;
@!%p4 bra LOADED;
@%p3 bra END;
ld.shared.u32 %r6, [%r10];
st.global.u32 [%d1+128], %r6;
st.release.gpu.global.u32 [%d1+256], 1;
bra END;
POLL:
ld.acquire.gpu.global.u32 %r7, [%d1+256];
setp.eq.u32 %p5, %r7, 0;
@%p5 bra POLL;
END:
mov.u32 %r8, 0;
"""
MOST = 400_000  # what the first slices of three polling warps take, and as much again


CASES: list[tuple[str, dict[int, str]]] = [(schedule, {}) for schedule in SCHEDULES]
CASES += [("slow_epilogue", roles) for roles in ({0: "epilogue0"}, {0: "epilogue0", 1: "epilogue1"})]


@pytest.mark.parametrize("setter", range(4))
@pytest.mark.parametrize(("schedule", "roles"), CASES)
def test_what_is_polled_for_comes(schedule: str, roles: dict[int, str], setter: int) -> None:
    """By warp 0 or 1 of CTA 0 or 1, while the others poll; epilogues are what ``slow_epilogue`` holds back."""
    out = np.zeros(128, np.uint32)
    out[0] = 77
    result = run_body(
        SET_AND_POLLED.format(setter=setter), out, grid=(2, 1, 1), block=(64, 1, 1), smem_bytes=2048,
        schedule=schedule, roles=roles, sms=2, max_instructions=MOST,
    )  # fmt: skip
    assert result.ok, str(result)
    assert (out[32], out[64]) == (77, 1)


def test_a_flag_that_nobody_sets_exhausts_the_budget() -> None:
    out = np.zeros(128, np.uint32)
    result = run_body(
        SET_AND_POLLED.format(setter=9), out, grid=(2, 1, 1), block=(64, 1, 1), smem_bytes=2048, sms=2,
        schedule="slow_tma", max_instructions=MOST,
    )  # fmt: skip
    assert result.status is SimStatus.BUDGET_EXCEEDED
