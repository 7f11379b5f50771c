"""Spilled registers in the clock: cycles counted by hand, and what a tuner is told of a kernel that spills."""

from __future__ import annotations

import dataclasses

import pytest

from kernel_space.machine.clock.estimate import TimedRun, joined_runs, simulate_launch
from tests.machine.clock.timed_cases import clock, launch
from tests.machine.ptx import HEADER
from tuner.simulated.constants.sets import admissible_sets
from tuner.simulated.time import time_of

WORK = "fma.rn.f32 %r40, %r41, %r42, %r43;\n"
# 10 instructions once, the last "ret" among them, and 19 turns of 10. Of the move ptxas keeps nothing.
LOOP = f"""{WORK * 8}mov.b32 %r1, 0;
add.u32 %r2, %r2, 1;
MORE:
{WORK * 7}add.u32 %r1, %r1, 1;
setp.lt.u32 %p1, %r1, 19;
@%p1 bra MORE;
"""
L1 = 64.0


def run(
    spill_bytes: int,
    *,
    body: str = LOOP,
    warps: int = 2,
    clusters: int = 1,
    places: int = 1,
    resident: int = 1,
) -> TimedRun:
    shape = dataclasses.replace(launch(block=32 * warps), grid=(clusters, 1, 1))
    text = HEADER.format(params=".param .u64 out", body=body)
    ticks = clock(l1_rate=L1)
    return simulate_launch(
        dataclasses.replace(shape, params=(b"\0" * 8,), tensor_maps={}), text, ticks, sm_count=places, places=places,
        resident=resident, spill_bytes=spill_bytes,
    )  # fmt: skip


def test_bytes_of_all_lanes_pass_l1_as_often_as_the_instructions_run() -> None:
    """24 bytes x 64 threads are 24 cycles of L1; 10 + 19 x 10 instructions of 20 ran 200 times, so 10 times each."""
    plain, spilled = run(0), run(24)
    assert plain.spills is None and spilled.spills is not None
    assert spilled.cycles[0] - plain.cycles[0] == pytest.approx(10 * 24)
    assert spilled.account["spilled registers"] == pytest.approx(240)
    assert (spilled.spills.least, spilled.spills.most) == pytest.approx((24, 19 * 24))


def test_code_without_a_loop_spills_once() -> None:
    spilled = run(24, body=WORK * 10)
    assert spilled.spills is not None
    assert float(spilled.spills.cycles[0]) == spilled.spills.least == spilled.spills.most == 24


def test_all_rounds_and_all_ctas_of_an_sm_spill() -> None:
    """Five CTAs on an SM that holds two at once: L1 gives each of two a half, and they run in three rounds."""
    spilled = run(24, clusters=5, places=2, resident=2)
    assert spilled.rounds == 3 and spilled.spills is not None
    assert spilled.spills.least == pytest.approx(3 * 2 * 24)


def test_launches_of_one_call_add_up() -> None:
    joined = joined_runs([run(24), run(0), run(8)])
    assert joined.spills is not None
    assert joined.spills.least == pytest.approx(24 + 8)
    assert joined.account["spilled registers"] == pytest.approx(10 * 32)


def test_the_interval_holds_where_they_may_stand() -> None:
    sets = admissible_sets()
    ghz = float(sets.values["clock_ghz"][0])

    def timed(spill_bytes: int) -> tuple[float, float, float]:
        one = run(spill_bytes)
        wide = dataclasses.replace(
            one, cycles=one.cycles.repeat(len(sets.values["clock_ghz"])), spills=one.spills
        )
        time = time_of(wide, sets)
        return time.us, time.low_us / (1 - sets.discrepancy), time.high_us / (1 + sets.discrepancy)

    us, low, high = timed(24)
    other = dataclasses.replace(run(24), spills=None)
    wide = dataclasses.replace(other, cycles=other.cycles.repeat(len(sets.values["clock_ghz"])))
    without = time_of(wide, sets)
    assert us == without.us
    assert without.low_us / (1 - sets.discrepancy) - low == pytest.approx((240 - 24) / ghz * 1e-3)
    assert high - without.high_us / (1 + sets.discrepancy) == pytest.approx((19 * 24 - 240) / ghz * 1e-3)
