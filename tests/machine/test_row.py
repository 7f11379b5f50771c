"""Launches in a row in one machine: when the next may begin, what its wait orders, and what is reported without it.

The oracle is PTX's text on ``griddepcontrol``, and arithmetic on the values that each launch leaves.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from kernel_space.machine.memory.global_memory import GlobalMemory
from kernel_space.machine.run.run import SimResult, ptx_launch, run_row
from kernel_space.machine.run.schedules import SCHEDULES
from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import TWO_BARRIERS, program, run_body

START = """
mov.u32 %r1, %tid.x;
shr.u32 %r2, %r1, 5;
ld.param.u64 %d1, [a];
ld.param.u64 %d2, [b];
mov.u32 %r3, %ctaid.x;
mov.u32 %r4, %ntid.x;
mad.lo.u32 %r5, %r3, %r4, %r1;
mad.wide.u32 %d3, %r5, 4, %d1;
mad.wide.u32 %d4, %r5, 4, %d2;
setp.eq.u32 %p1, %r2, 0;
"""
PARAMS = ".param .u64 a, .param .u64 b"
LAUNCH = "griddepcontrol.launch_dependents;"
WAIT = "griddepcontrol.wait;"
ADD_ONE = "ld.global.u32 %r9, [%d3]; add.u32 %r9, %r9, 1; st.global.u32 [%d4], %r9;"  # b = a + 1


def row(
    *bodies: tuple[str, np.ndarray, np.ndarray], grid: int = 2, block: int = 64, schedule: str = "eager", **options: Any
) -> SimResult:  # fmt: skip
    """Each launch: what follows ``START``, and the arrays ``a`` and ``b``."""
    regions = GlobalMemory()
    calls = []
    for body, a, b in bodies:
        text = program(START + body, PARAMS)
        shape = {"grid": (grid, 1, 1), "block": (block, 1, 1), "smem_bytes": 1024}
        calls.append((ptx_launch(text, (a, b), regions, **shape), text))
    return run_row(calls, regions, schedule=schedule, **{"sms": 8, **options})


def arrays(count: int, words: int = 128) -> list[np.ndarray]:
    """The first counts up from 100, the others hold zeros."""
    return [
        np.arange(100, 100 + words, dtype=np.uint32),
        *(np.zeros(words, np.uint32) for _ in range(count - 1)),
    ]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("first", [LAUNCH + ADD_ONE, ADD_ONE + LAUNCH, ADD_ONE])
def test_what_waits_sees_all_of_the_launch_before(schedule: str, first: str) -> None:
    """However early the first lets the others begin: that is legal by itself."""
    x, y, z, u = arrays(4)
    second = WAIT + LAUNCH + ADD_ONE
    result = row((first, x, y), (second, y, z), (WAIT + ADD_ONE, z, u), schedule=schedule)
    assert result.ok, str(result)
    assert (u == x + 3).all()


def test_without_a_wait_the_numbers_are_old_and_the_report_says_what_is_missing() -> None:
    x, y, z = arrays(3)
    result = row((LAUNCH + ADD_ONE, x, y), (ADD_ONE, y, z))
    assert result.status is SimStatus.RACE
    assert (z == 1).all(), "the second launch has read y before the first one wrote it"
    text = str(result.findings[0])
    assert "no griddepcontrol.wait orders the two" in text and "launch 2" in text and "launch 1" in text
    assert "ld.global.u32" in text and "st.global.u32" in text


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        (LAUNCH + ADD_ONE, ADD_ONE, ("b", "b")),  # WAW on y
        (
            LAUNCH + ADD_ONE,
            "st.global.u32 [%d3], %r1;" + WAIT,
            ("a", "a"),
        ),  # WAR: the workspace is overwritten early
        (ADD_ONE, ADD_ONE, ("b", "b")),  # even where it begins at the end of every CTA
    ],
)
def test_early_writes_are_reported_under_every_schedule(
    schedule: str, first: str, second: str, names: tuple[str, str]
) -> None:
    x, y, other = arrays(3)
    calls = {"a": (second, x, other), "b": (second, other, y)}
    result = row((first, x, y), calls[names[0]], schedule=schedule)
    assert result.status is SimStatus.RACE and "launch 2" in str(result)


def test_an_early_overwrite_is_seen_in_the_numbers() -> None:
    x, y, unused = arrays(3)
    row((LAUNCH + ADD_ONE, x, y), ("st.global.u32 [%d3], %r4;" + WAIT, x, unused))
    assert (y == 65).all(), "the first launch has read what the second one wrote early"


SOME_WAIT = f"@!%p1 bra PAST; {WAIT} PAST:"
BY_MBARRIER = """
@%p5 bra CONSUMER;
griddepcontrol.wait;
setp.ne.u32 %p4, %r1, 0;
@%p4 bra CONSUMER;
mbarrier.arrive.shared.b64 _, [%r10];
CONSUMER:
LOOP:
mbarrier.try_wait.parity.shared.b64 %p2, [%r10], 0;
@!%p2 bra LOOP;
"""


@pytest.mark.parametrize(
    ("order", "right"),
    [
        (SOME_WAIT, False),
        (f"@%p1 {WAIT}", False),  # guarded, which is the same
        (SOME_WAIT + "bar.sync 0;", True),
        ("bar.sync 0;" + SOME_WAIT, False),
        (BY_MBARRIER, True),
        (BY_MBARRIER.replace("try_wait.", "try_wait.relaxed.cta."), False),
    ],
)  # fmt: skip
def test_a_wait_orders_the_warp_that_executed_it_and_who_is_behind_it(order: str, right: bool) -> None:
    x, y, z = arrays(3)
    barriers = TWO_BARRIERS.replace("ld.param.u64 %d1, [out];", "setp.ne.u32 %p5, %r2, 0;")
    result = row((LAUNCH + ADD_ONE, x, y), ((barriers if "LOOP" in order else "") + order + ADD_ONE, y, z))
    assert result.ok is right, str(result)
    if right:
        assert (z == x + 2).all()
    else:
        assert "warp1 (launch 2" in str(result) and "warp0 (launch 2" not in str(result)


EXPECT = "mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 16;"
COPY = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10+64], [%d1], 16, [%r10];"
STORE = """add.u32 %r11, %r10, 96;
st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%r11], {%r1, %r1, %r1, %r1}, [%r10];"""


def by_copy(*steps: str, semantics: str = "") -> str:
    """One thread takes these steps; then all threads wait for the phase that ends with its bytes."""
    text = ("setp.ne.u32 %p4, %r1, 0; @%p4 bra CONSUMER;", *steps, "CONSUMER:", "LOOP:")
    return "\n".join(
        (*text, f"mbarrier.try_wait.parity.{semantics}shared.b64 %p2, [%r10], 0;", "@!%p2 bra LOOP;")
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("order", "right"),
    [
        (by_copy(EXPECT, WAIT, COPY), True),  # the arrival is ahead of the wait, the bytes are behind it
        (by_copy(EXPECT, WAIT, STORE), True),
        (by_copy(WAIT, EXPECT, COPY), True),
        (by_copy(EXPECT, WAIT, COPY, semantics="relaxed.cta."), False),
        (by_copy(EXPECT, COPY, WAIT), False),  # no byte of the phase comes behind the wait
        (by_copy(EXPECT, COPY), False),
    ],
)
def test_who_has_seen_bytes_that_were_asked_for_behind_a_wait_is_behind_it(
    schedule: str, order: str, right: bool
) -> None:
    x, y, z = arrays(3)
    ready = TWO_BARRIERS.replace("ld.param.u64 %d1, [out];", "")
    result = row((LAUNCH + ADD_ONE, x, y), (ready + order + ADD_ONE, y, z), grid=1, schedule=schedule)
    assert result.ok is right, str(result)
    if right:
        assert (z[:64] == x[:64] + 2).all()
    else:
        assert re.search(r"griddepcontrol.wait orders the two[^@]* at PTX line \d+: ld.global", str(result))


def test_bytes_bring_the_wait_along_but_no_write_of_who_asked_for_them() -> None:
    """A release of the copy is none of the thread: what that has written is not known to who sees the bytes."""
    x, y, z, u = arrays(4)
    ready = TWO_BARRIERS.replace("ld.param.u64 %d1, [out];", "")
    # All threads read what thread 0 has written to b.
    read = "ld.global.u32 %r9, [%d2]; st.shared.u32 [%r10+512], %r9;"
    wrong = by_copy(EXPECT, WAIT, "st.global.u32 [%d2], %r1;", COPY) + read
    result = row((LAUNCH + ADD_ONE, x, y), (ready + wrong, y, z), grid=1)
    assert result.status is SimStatus.RACE and "RAW on global memory, byte 0 of b" in str(result)
    released = by_copy(WAIT, "st.global.u32 [%d2], %r1;", EXPECT, COPY) + "ld.global.u32 %r9, [%d2];"
    result = row((LAUNCH + ADD_ONE, x, y), (ready + released, y, u), grid=1)
    assert result.ok, str(result)


def test_the_end_of_a_launch_that_never_waited_says_nothing_of_the_one_before_it() -> None:
    x, y, z, u = arrays(4)
    idle = LAUNCH + "st.global.u32 [%d4], %r1;"
    wrong = row((LAUNCH + ADD_ONE, x, y), (idle, u, u), (WAIT + ADD_ONE, y, z))
    assert wrong.status is SimStatus.RACE
    assert "no thread has waited for the end of launch 1" in str(wrong) and "launch 3" in str(wrong)
    x, y, z, u = arrays(4)
    one_waits = LAUNCH + SOME_WAIT + "st.global.u32 [%d4], %r1;"
    right = row((LAUNCH + ADD_ONE, x, y), (one_waits, u, u), (WAIT + ADD_ONE, y, z))
    assert right.ok and (z == x + 2).all()


def test_the_next_launch_begins_when_the_last_cta_lets_it() -> None:
    """It counts itself in before it waits; each CTA of the first sees how many have."""
    look, count_in = (
        "atom.global.add.u32 %r9, [%d1], 0; st.global.u32 [%d4], %r9;",
        "red.global.add.u32 [%d1], 1;",
    )
    for signal, seen in (
        (LAUNCH, [128, 128]),
        (f"setp.eq.u32 %p3, %r3, 0; @%p3 {LAUNCH}", [128, 0]),
        ("", [0, 0]),
    ):
        count, old, unused = np.zeros(1, np.uint32), np.zeros(128, np.uint32), np.zeros(128, np.uint32)
        result = row((signal + look, count, old), (count_in + WAIT, count, unused))
        assert result.ok, str(result)
        assert old.tolist() == 64 * seen[:1] + 64 * seen[1:] and int(count[0]) == 128


@pytest.mark.parametrize(("sms", "early"), [(8, 128), (1, 64)])
def test_ctas_that_are_on_the_chip_together_stand_back_together(sms: int, early: int) -> None:
    """The CTAs of the first look once they have let the second begin: on one SM the first of them is gone by then."""
    look, count_in = (
        "atom.global.add.u32 %r9, [%d1], 0; st.global.u32 [%d4], %r9;",
        "red.global.add.u32 [%d1], 1;",
    )
    count, old, unused = np.zeros(1, np.uint32), np.zeros(128, np.uint32), np.zeros(128, np.uint32)
    result = row((LAUNCH + look, count, old), (count_in + WAIT, count, unused), sms=sms)
    assert result.ok, str(result)
    assert int((old > 0).sum()) == early and int(count[0]) == 128


def test_atomics_of_two_launches_are_fine_and_a_plain_reset_between_them_is_not() -> None:
    count = "atom.global.add.u32 %r9, [%d1], 1;"
    cell, unused = np.zeros(1, np.uint32), np.zeros(128, np.uint32)
    assert row((LAUNCH + count, cell, unused), (count, cell, unused)).ok
    reset = row(
        (LAUNCH + count, cell, unused), ("st.global.u32 [%d1], 0;" + WAIT, cell, unused), grid=1, block=32
    )
    assert reset.status is SimStatus.RACE and "atomic of warp0 (launch 1" in str(reset)
    late = row(
        (LAUNCH + "st.global.u32 [%d1], 0;", cell, unused), (count + WAIT, cell, unused), grid=1, block=32
    )
    assert late.status is SimStatus.RACE and "warp0 (launch 2) changed" in str(late)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_flag_orders_launches_too_and_polling_for_it_ends(schedule: str) -> None:
    first = LAUNCH + ADD_ONE + "bar.sync 0; membar.gl; red.release.gpu.global.add.u32 [%d1+512], 1;"
    second = (
        "POLL: ld.acquire.gpu.global.u32 %r9, [%d3+512]; setp.lt.u32 %p3, %r9, 64; @%p3 bra POLL;" + ADD_ONE
    )
    x, y, z = np.zeros(129, np.uint32), np.zeros(129, np.uint32), np.zeros(129, np.uint32)
    second = second.replace("[%d3+512]", "[%d2+512]")
    result = row((first.replace("%d1+512", "%d2+512"), x, y),
                 (second.replace("%d2+512", "%d1+512"), y, z), grid=1, schedule=schedule)  # fmt: skip
    assert result.ok, str(result)
    assert (z[:64] == 2).all()


def test_the_launch_before_the_first_may_still_be_writing() -> None:
    """Until somebody waits for its end; what it does not write is free."""
    x, y = arrays(2)
    both = [(array.ctypes.data, array.nbytes) for array in (x, y)]
    early = row((ADD_ONE, x, y), former=both[:1])
    assert early.status is SimStatus.RACE and "what the launch before the first wrote" in str(early)
    assert row((ADD_ONE, x, y), former=[(y.ctypes.data + 256, 16)]).status is SimStatus.RACE
    assert row((ADD_ONE, x, y), former=[(y.ctypes.data + 256, 16)], grid=1).ok, (
        "the first CTA keeps to 64 words"
    )
    assert row((WAIT + ADD_ONE, x, y), former=both).ok
    assert row((SOME_WAIT + ADD_ONE, x, y), former=both).status is SimStatus.RACE
    unwaited = row((LAUNCH, x, y), (WAIT + ADD_ONE, x, y), former=both)
    assert unwaited.status is SimStatus.RACE and "end of the launch before the first" in str(unwaited)


def test_a_wait_in_a_launch_of_its_own_returns_at_once() -> None:
    out = np.zeros(32, np.uint32)
    body = "griddepcontrol.wait; mov.u32 %r1, %tid.x; ld.param.u64 %d1, [out]; mad.wide.u32 %d1, %r1, 4, %d1;"
    assert run_body(body + "st.global.u32 [%d1], %r1;", out).ok
    assert (out == np.arange(32)).all()


def test_a_launch_that_never_ends_is_where_the_deadlock_is() -> None:
    x, y, z = arrays(3)
    stuck = LAUNCH + "setp.ne.u32 %p3, %r2, 0; @%p3 bra OUT; bar.sync 0, 96; OUT:"
    result = row((stuck, x, y), (WAIT + ADD_ONE, y, z), grid=1)
    assert result.status is SimStatus.DEADLOCK
    assert "32 of 96 threads" in str(result) or "64 of 96 threads" in str(result)
