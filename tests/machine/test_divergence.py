"""Lanes that go different ways: every lane's result against the same program run one lane at a time in Python."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kernel_space.machine.translate.translate import translate
from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import program, run_body

FRAME = """
mov.u32 %r1, %tid.x;
ld.param.u64 %d1, [out];
mad.wide.u32 %d2, %r1, 4, %d1;
mov.u32 %r5, 1000;
{body}
END:
st.global.u32 [%d2], %r5;
DONE:
"""


def check(body: str, lane_result: Callable[[int], int], threads: int = 32) -> None:
    out = np.full(threads, 7, np.uint32)
    result = run_body(FRAME.format(body=body), out, block=(threads, 1, 1))
    assert result.ok, str(result)
    assert out.tolist() == [lane_result(lane) & 0xFFFFFFFF for lane in range(threads)]


def test_if_else_assigns_one_register_on_both_sides() -> None:
    body = """
    setp.lt.u32 %p1, %r1, 11;
    @%p1 bra LOW;
    add.u32 %r5, %r1, 100;
    bra END;
    LOW:
    mul.lo.u32 %r5, %r1, 3;
    """
    check(body, lambda lane: lane * 3 if lane < 11 else lane + 100)


def test_one_sided_if_keeps_the_old_value() -> None:
    body = """
    and.b32 %r6, %r1, 1;
    setp.eq.u32 %p1, %r6, 0;
    @%p1 bra SKIP;
    mov.u32 %r5, 5;
    SKIP:
    add.u32 %r5, %r5, 1;
    """
    check(body, lambda lane: 6 if lane % 2 else 1001)


def test_loop_with_a_trip_count_per_lane() -> None:
    body = """
    mov.u32 %r5, 0;
    mov.u32 %r6, 0;
    LOOP:
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 bra END;
    add.u32 %r5, %r5, %r6;
    add.u32 %r6, %r6, 1;
    bra LOOP;
    """
    check(body, lambda lane: sum(range(lane)))


def test_nested_branches_inside_a_loop() -> None:
    """Collatz steps of lane + 1."""
    body = """
    mov.u32 %r5, 0;
    add.u32 %r6, %r1, 1;
    LOOP:
    setp.eq.u32 %p1, %r6, 1;
    @%p1 bra END;
    and.b32 %r7, %r6, 1;
    setp.ne.u32 %p2, %r7, 0;
    @%p2 bra ODD;
    shr.u32 %r6, %r6, 1;
    bra NEXT;
    ODD:
    mad.lo.u32 %r6, %r6, 3, 1;
    NEXT:
    add.u32 %r5, %r5, 1;
    bra LOOP;
    """

    def steps(lane: int) -> int:
        value, count = lane + 1, 0
        while value != 1:
            value = value // 2 if value % 2 == 0 else 3 * value + 1
            count += 1
        return count

    check(body, steps)


def test_lanes_that_exit_early_write_nothing() -> None:
    body = """
    setp.ge.u32 %p1, %r1, 20;
    @%p1 bra DONE;
    setp.lt.u32 %p2, %r1, 4;
    @%p2 exit;
    mov.u32 %r5, 9;
    """
    check(body, lambda lane: 9 if 4 <= lane < 20 else 7)


def test_lanes_that_exit_inside_a_branch_do_not_come_back() -> None:
    """The others meet behind the branch and write; the lanes 3 to 5 have ended."""
    body = """
    setp.gt.u32 %p1, %r1, 5;
    @%p1 bra MEET;
    setp.ge.u32 %p2, %r1, 3;
    @%p2 bra LEAVE;
    mov.u32 %r5, 50;
    bra MEET;
    LEAVE:
    exit;
    MEET:
    add.u32 %r5, %r5, %r1;
    """
    check(body, lambda lane: 7 if 3 <= lane <= 5 else (50 if lane < 3 else 1000) + lane)


def test_block_with_a_partial_last_warp() -> None:
    check("add.u32 %r5, %r1, 1;", lambda lane: lane + 1, threads=45)


@pytest.mark.parametrize("guard", ["@%p1", "@!%p1"])
def test_guarded_instructions(guard: str) -> None:
    body = f"setp.lt.u32 %p1, %r1, 5;\n{guard} mov.u32 %r5, 3;\n{guard} add.u32 %r5, %r5, %r1;"
    check(body, lambda lane: 3 + lane if (lane < 5) == (guard == "@%p1") else 1000)


def test_predicates_survive_divergence() -> None:
    """%p3 is written on one side only and read behind the meeting point."""
    body = """
    setp.eq.u32 %p3, %r1, 0;
    setp.lt.u32 %p1, %r1, 8;
    @!%p1 bra MEET;
    setp.gt.u32 %p3, %r1, 5;
    MEET:
    selp.u32 %r5, 1, 2, %p3;
    """
    check(body, lambda lane: 1 if 5 < lane < 8 else 2)


def test_elect_chooses_the_lowest_lane_of_the_members() -> None:
    """Measured on Hopper: with member mask 0xffffff80 lane 7 leads."""
    body = """
    setp.lt.u32 %p1, %r1, 7;
    @%p1 bra END;
    elect.sync %r6|%p2, 0xffffff80;
    selp.u32 %r5, 1, 0, %p2;
    mad.lo.u32 %r5, %r6, 100, %r5;
    """
    check(body, lambda lane: 1000 if lane < 7 else 701 if lane == 7 else 700)


def test_shuffles_and_votes() -> None:
    body = """
    shfl.sync.up.b32 %r6, %r1, 1, 0, -1;
    shfl.sync.down.b32 %r7|%p4, %r1, 4, 31, -1;
    shfl.sync.bfly.b32 %r8, %r1, 3, 31, -1;
    shfl.sync.idx.b32 %r9, %r1, 5, 31, -1;
    setp.gt.u32 %p1, %r1, 29;
    vote.sync.ballot.b32 %r10, %p1, -1;
    selp.u32 %r11, 1000, 0, %p4;
    mad.lo.u32 %r5, %r6, 2, %r7;
    add.u32 %r5, %r5, %r8;
    add.u32 %r5, %r5, %r9;
    shr.u32 %r10, %r10, 20;
    add.u32 %r5, %r5, %r10;
    add.u32 %r5, %r5, %r11;
    """

    def lane_result(lane: int) -> int:
        up = lane - 1 if lane >= 1 else lane
        down, inside = (lane + 4, 1000) if lane + 4 < 32 else (lane, 0)
        return 2 * up + down + (lane ^ 3) + 5 + (0xC0000000 >> 20) + inside

    check(body, lane_result)


def test_shuffle_within_segments() -> None:
    """A clamp of 0x1c1f makes segments of four lanes; one of 3 ends at lane 3, so all keep their own."""
    body = """
    shfl.sync.idx.b32 %r6, %r1, 1, 0x1c1f, -1;
    shfl.sync.idx.b32 %r7, %r1, 5, 3, -1;
    mov.b64 %d5, {%r6, %r7};
    shr.u64 %d5, %d5, 30;
    cvt.u32.u64 %r5, %d5;
    setp.gt.u32 %p1, %r6, 12;
    @%p1 bra END;
    mad.lo.u32 %r5, %r6, 1000, %r5;
    """
    check(body, lambda lane: 4 * lane + (0 if lane // 4 * 4 + 1 > 12 else 1000 * (lane // 4 * 4 + 1)))


def test_redux_adds_the_lanes() -> None:
    check("redux.sync.add.u32 %r5, %r1, -1;", lambda lane: sum(range(32)))


def test_atomics_hand_out_every_ticket_once() -> None:
    counter = np.zeros(1, np.uint32)
    out = np.zeros(64, np.uint32)
    body = """
    mov.u32 %r1, %tid.x;
    ld.param.u64 %d1, [out];
    ld.param.u64 %d2, [counter];
    atom.global.add.u32 %r5, [%d2], 1;
    mad.wide.u32 %d3, %r1, 4, %d1;
    st.global.u32 [%d3], %r5;
    """
    result = run_body(body, out, counter, params=".param .u64 out, .param .u64 counter", block=(64, 1, 1))
    assert result.ok, str(result)
    assert sorted(out.tolist()) == list(range(64)) and counter[0] == 64


@pytest.mark.parametrize(
    ("how", "kind", "operand", "expected"),
    [("min", "s32", -9 & 0xFFFFFFFF, -9), ("max", "u32", 50, 50), ("and", "b32", 6, 2), ("or", "b32", 5, 15),
     ("xor", "b32", 3, 9), ("exch", "b32", 77, 77), ("inc", "u32", 9, 0), ("dec", "u32", 3, 3)],
)  # fmt: skip
def test_one_atomic(how: str, kind: str, operand: int, expected: int) -> None:
    """The cell holds 10 (binary 1010); wrapped increments and decrements return to 0 and to the operand."""
    cell = np.array([10], np.int32)
    body = f"""
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra END;
    ld.param.u64 %d1, [out];
    mov.u32 %r2, {operand};
    atom.global.{how}.{kind} %r3, [%d1], %r2;
    END:
    """
    assert run_body(body, cell).ok
    assert cell[0] == expected


def test_compare_and_swap_and_float_add() -> None:
    cells = np.array([10, 10, 0], np.int32)
    body = """
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra END;
    ld.param.u64 %d1, [out];
    atom.global.cas.b32 %r3, [%d1], 10, 20;
    atom.global.cas.b32 %r3, [%d1+4], 11, 20;
    mov.b32 %r4, 0f40200000;
    red.global.add.f32 [%d1+8], %r4;
    red.global.add.f32 [%d1+8], %r4;
    END:
    """
    assert run_body(body, cells).ok
    assert cells[:2].tolist() == [20, 10]
    assert cells[2:].view(np.float32)[0] == 5.0


def test_local_memory_is_each_lanes_own() -> None:
    """Lane n keeps n * n and n + 1 in an array of two words, by local and by generic address."""
    out = np.zeros(32, np.uint32)
    body = """
    .local .align 8 .b8 depot[16];
    mov.u64 %d3, depot;
    cvta.local.u64 %d4, %d3;
    mov.u32 %r1, %tid.x;
    mul.lo.u32 %r2, %r1, %r1;
    add.u32 %r3, %r1, 1;
    st.local.u32 [%d3], %r2;
    st.u32 [%d4+4], %r3;
    ld.u32 %r4, [%d4];
    ld.local.u32 %r5, [%d3+4];
    mad.lo.u32 %r6, %r4, 1000, %r5;
    ld.param.u64 %d1, [out];
    mad.wide.u32 %d2, %r1, 4, %d1;
    st.global.u32 [%d2], %r6;
    """
    result = run_body(body, out)
    assert result.ok, str(result)
    assert out.tolist() == [n * n * 1000 + n + 1 for n in range(32)]


def test_local_access_outside_is_illegal() -> None:
    body = ".local .align 8 .b8 depot[16];\nmov.u64 %d3, depot;\nst.local.u32 [%d3+16], %r1;"
    assert run_body(body, np.zeros(1, np.uint32)).status is SimStatus.ILLEGAL_ACCESS


def test_carry_chain_crosses_blocks() -> None:
    """128-bit sum of (2^64 - 1) and 1, with a branch between the halves."""
    out = np.zeros(2, np.uint64)
    body = """
    ld.param.u64 %d1, [out];
    mov.u64 %d2, -1;
    add.cc.u64 %d3, %d2, 1;
    bra NEXT;
    BACK:
    addc.u64 %d4, 5, 6;
    st.global.u64 [%d1], %d3;
    st.global.u64 [%d1+8], %d4;
    bra END;
    NEXT:
    bra BACK;
    END:
    """
    result = run_body(body, out)
    assert result.ok, str(result)
    assert out.tolist() == [0, 12]


@pytest.mark.parametrize("test", ["eq", "ne"])
def test_warps_that_take_and_that_pass_a_branch_whose_guard_is_older_than_its_block(test: str) -> None:
    """The first warp decides what is translated at first, and others come after it: by both ways, and back again."""
    body = f"""
    shr.u32 %r8, %r1, 5;
    shfl.sync.idx.b32 %r6, %r8, 0, 31, -1;
    and.b32 %r7, %r6, 1;
    setp.{test}.u32 %p1, %r7, 0;
    bar.sync 0;
    @%p1 bra TAKEN;
    add.u32 %r5, %r6, 10;
    bra END;
    TAKEN:
    add.u32 %r5, %r6, 20;
    """
    taken = 0 if test == "eq" else 1
    check(body, lambda lane: lane // 32 + (20 if lane // 32 % 2 == taken else 10), threads=128)


def test_what_no_warp_reached_is_not_translated() -> None:
    """Text behind the branch is only made for a warp that does not take it."""
    kernel = translate(
        program("setp.ne.u32 %p1, %r5, 0;\nbar.sync 0;\n@%p1 bra END;\nmov.u32 %r6, 4711;\nbar.sync 1;\nEND:")
    )
    guard = next(register for register in kernel.kernel.registers if register.name == "%p1").slot
    registers = [0] * len(kernel.kernel.registers)
    block = next(block.index for block in kernel.graph.blocks if block.guard is not None)
    assert "4711" in kernel.python_text(block, partial=False, entry=registers)
    registers[guard] = 0xFFFFFFFF
    assert "4711" not in kernel.python_text(block, partial=False, entry=registers)
