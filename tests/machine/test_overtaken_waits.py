"""A phase must not be able to complete before everybody who waits for the one before it has seen that: parities repeat.

The oracle is another order of the same program: with the waiter held back until the second phase is over, it waits for
ever. Where the second phase needs the waiter's own sign, no order does that.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.run.run import SimResult
from kernel_space.machine.run.schedules import SCHEDULES
from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import TWO_BARRIERS, run_body

A, B, C = "[%r10]", "[%r10+8]", "[%r10+24]"
ARRIVE = "mbarrier.arrive.shared.b64 _, {};\n"
RELAXED = "mbarrier.arrive.relaxed.cta.shared.b64 _, {};\n"
COPY = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10+32], [%d1], 16, {};\n"
EXPECT = "mbarrier.arrive.expect_tx.shared.b64 _, {}, 16;\n"
MAKE_C = TWO_BARRIERS.replace("READY:", "mbarrier.init.shared.b64 [%r10+24], 1;\nREADY:")


def wait(barrier: str, parity: int, name: str) -> str:
    return f"{name}: mbarrier.try_wait.parity.shared.b64 %p3, {barrier}, {parity};\n@!%p3 bra {name};\n"


def run(first: str, waiter: str, third: str, schedule: str = "eager") -> SimResult:
    """What lane 0 of three warps does."""
    body = MAKE_C + "and.b32 %r3, %r1, 31;\nsetp.ne.u32 %p2, %r3, 0;\n@%p2 bra END;\n"
    for number in (1, 2):
        body += f"setp.eq.u32 %p4, %r2, {number};\n@%p4 bra WARP{number};\n"
    body += f"{first}bra END;\nWARP1:\n{waiter}bra END;\nWARP2:\n{third}END:\n"
    out = np.zeros(4, np.uint32)
    return run_body(body, out, smem_bytes=64, block=(96, 1, 1), schedule=schedule)


TWO_PHASES = ARRIVE.format(A) + wait(B, 0, "L0") + ARRIVE.format(A)
BOTH_WAITS = wait(A, 0, "L1") + "{sign}" + wait(A, 1, "L2")


def test_held_back_the_waiter_takes_the_second_phase_for_the_first() -> None:
    """The oracle of the others: nobody orders warp 1's wait before the second phase, so it may come behind it."""
    first = TWO_PHASES + ARRIVE.format(C)
    result = run(first, wait(C, 0, "L3") + BOTH_WAITS.format(sign=""), ARRIVE.format(B))
    assert result.status is SimStatus.DEADLOCK


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_wait_that_was_in_time_by_luck_is_reported(schedule: str) -> None:
    result = run(TWO_PHASES, BOTH_WAITS.format(sign=""), ARRIVE.format(B), schedule)
    assert result.status in (SimStatus.RACE, SimStatus.DEADLOCK)
    if result.status is SimStatus.RACE:
        assert "may complete before warp1 has seen" in str(result)


def test_under_some_schedule_luck_is_on_its_side() -> None:
    found = {run(TWO_PHASES, BOTH_WAITS.format(sign=""), ARRIVE.format(B), one).status for one in SCHEDULES}
    assert SimStatus.RACE in found


@pytest.mark.parametrize("arrive", [ARRIVE, RELAXED])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_sign_of_the_waiter_orders_it(schedule: str, arrive: str) -> None:
    """A relaxed arrival, too: it orders no memory, but comes behind the wait all the same."""
    result = run(TWO_PHASES, BOTH_WAITS.format(sign=arrive.format(B)), "", schedule)
    assert result.ok, str(result)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_sign_over_a_third_warp_orders_it(schedule: str) -> None:
    waiter = BOTH_WAITS.format(sign=RELAXED.format(C))
    result = run(TWO_PHASES, waiter, wait(C, 0, "L3") + RELAXED.format(B), schedule)
    assert result.ok, str(result)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("signs", [True, False])
def test_bytes_hold_a_phase_open_as_arrivals_do(schedule: str, signs: bool) -> None:
    """The second phase has its arrival at once; what it waits for is a copy behind the waiter's sign, or not."""
    first = ARRIVE.format(A) + EXPECT.format(A) + ARRIVE.format(C)
    sign = ARRIVE.format(B)
    third = wait(C, 0, "L3") + (wait(B, 0, "L0") if signs else "") + COPY.format(A)
    result = run(first, BOTH_WAITS.format(sign=sign), third, schedule)
    assert result.ok if signs else result.status in (SimStatus.RACE, SimStatus.DEADLOCK), str(result)
