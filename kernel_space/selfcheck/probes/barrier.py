"""Probes of mbarriers and named barriers inside one CTA."""

from __future__ import annotations

from kernel_space.selfcheck.text.probe import Probe
from kernel_space.selfcheck.text.ptx_text import per_thread

_BARRIER = ".shared .align 8 .b64 barrier;"
_ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [%r1]"
# Lines of a script are executed in order by one warp. "one:" lines run in lane 0, others in all 32 lanes;
# "test P" appends one bit to the result: has the phase of parity P completed? "drop" below is arrive_drop.
_SCRIPTS = {
    "fresh": (1, "a fresh barrier: parity 0 has not completed, parity 1 has", ["test 0", "test 1"]),
    "two_phases": (
        1, "parity alternates with each phase",
        ["one:" + _ARRIVE, "test 0", "test 1", "one:" + _ARRIVE, "test 0", "test 1"],
    ),
    "count_three": (
        3, "the phase completes with the third arrival, and the count starts again",
        ["one:" + _ARRIVE, "test 0", "one:" + _ARRIVE, "test 0", "one:" + _ARRIVE, "test 0", "one:" + _ARRIVE, "test 1",
         "one:" + _ARRIVE, "one:" + _ARRIVE, "test 1"],
    ),
    "count_operand": (
        5, "arrive with a count", ["one:" + _ARRIVE + ", 3", "test 0", "one:" + _ARRIVE + ", 2", "test 0"],
    ),
    "all_lanes": (32, "32 active lanes arrive 32 times", [_ARRIVE, "test 0", "one:" + _ARRIVE, "test 1"]),
    "all_lanes_short": (33, "32 lanes are one too few for 33", [_ARRIVE, "test 0", "one:" + _ARRIVE, "test 0"]),
    "expect_then_complete": (
        1, "expected bytes hold the phase open until complete_tx",
        ["one:mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 64", "test 0",
         "one:mbarrier.complete_tx.relaxed.cluster.shared::cta.b64 [%r1], 48", "test 0",
         "one:mbarrier.complete_tx.relaxed.cluster.shared::cta.b64 [%r1], 16", "test 0"],
    ),
    "complete_before_expect": (
        1, "the byte count may go below zero and come back",
        ["one:mbarrier.complete_tx.relaxed.cluster.shared::cta.b64 [%r1], 64", "test 0",
         "one:mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 64", "test 0", "test 1"],
    ),
    "expect_alone": (
        2, "expect_tx without arrival",
        ["one:mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 32", "one:" + _ARRIVE + ", 2", "test 0",
         "one:mbarrier.complete_tx.relaxed.cluster.shared::cta.b64 [%r1], 32", "test 0"],
    ),
    "expect_by_all_lanes": (
        1, "expect_tx by 32 lanes counts 32 times",
        ["mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 2", "one:" + _ARRIVE, "test 0",
         "one:mbarrier.complete_tx.relaxed.cluster.shared::cta.b64 [%r1], 2", "test 0",
         "one:mbarrier.complete_tx.relaxed.cluster.shared::cta.b64 [%r1], 62", "test 0"],
    ),
    "drop": (
        3, "arrive_drop lowers the count of the following phases",
        ["one:mbarrier.arrive_drop.shared::cta.b64 _, [%r1]", "one:" + _ARRIVE + ", 2", "test 0", "one:" + _ARRIVE,
         "test 1", "one:" + _ARRIVE, "test 1"],
    ),
    "initialised_again": (
        2, "init after inval starts at phase 0",
        ["one:" + _ARRIVE + ", 2", "test 0", "one:mbarrier.inval.shared::cta.b64 [%r1]",
         "one:mbarrier.init.shared::cta.b64 [%r1], 1", "test 0", "test 1", "one:" + _ARRIVE, "test 0"],
    ),
    "try_wait": (
        1, "try_wait of a completed phase is true at once, of a pending one false at its time limit",
        ["try 1", "try 0", "one:" + _ARRIVE, "try 0", "try 1"],
    ),
}  # fmt: skip


def probes() -> list[Probe]:
    scripts = [_script(name, *case) for name, case in _SCRIPTS.items()]
    return [*scripts, _state_token(), _pending_count(), *_named(), _dependent_launch(), _ring()]


def _script(name: str, count: int, asks: str, lines: list[str]) -> Probe:
    init = f"@%lead mbarrier.init.shared::cta.b64 [%r1], {count};"
    code = ["mov.u32 %r1, barrier;", init, "bar.sync 0;", "mov.u32 %x, 0;"]
    bit = 0
    for line in lines:
        if line.startswith(("test", "try")):
            code.append(_look(line, bit))
            bit += 1
        elif line.startswith("one:"):
            code.append(f"@%lead {line[4:]};\nbar.warp.sync 0xffffffff;")
        else:
            code.append(f"{line};\nbar.warp.sync 0xffffffff;")
    return per_thread(f"mbarrier.{name}", asks, "\n".join(code), shared=_BARRIER)


def _look(line: str, bit: int) -> str:
    how, parity = line.split()
    limit = ", 20000" if how == "try" else ""
    opcode = f"mbarrier.{how}_wait.parity.shared::cta.b64"
    return (
        f"{opcode} %p0, [%r1], {parity}{limit};\n@%p0 or.b32 %x, %x, {1 << bit};\nbar.warp.sync 0xffffffff;"
    )


def _state_token() -> Probe:
    """The state that arrive returns names the phase it arrived in."""
    code = """\
        mov.u32 %r1, barrier;
        @%lead mbarrier.init.shared::cta.b64 [%r1], 64;
        bar.sync 0;
        mbarrier.arrive.shared::cta.b64 %q0, [%r1];
        mov.u32 %x, 0;
        bar.warp.sync 0xffffffff;
        mbarrier.test_wait.shared::cta.b64 %p0, [%r1], %q0;
        @%p0 or.b32 %x, %x, 1;
        bar.warp.sync 0xffffffff;
        mbarrier.arrive.shared::cta.b64 %q1, [%r1];
        bar.warp.sync 0xffffffff;
        mbarrier.test_wait.shared::cta.b64 %p0, [%r1], %q0;
        @%p0 or.b32 %x, %x, 2;
        mbarrier.test_wait.shared::cta.b64 %p0, [%r1], %q1;
        @%p0 or.b32 %x, %x, 4;"""
    return per_thread("mbarrier.state_token", "test_wait with the state of arrive", code, shared=_BARRIER)


def _pending_count() -> Probe:
    code = """\
        mov.u32 %r1, barrier;
        mov.u32 %x, 0;
        mov.u32 %y, 0;
        @!%lead bra OUT;
        mbarrier.init.shared::cta.b64 [%r1], 7;
        mbarrier.arrive.shared::cta.b64 %q0, [%r1];
        mbarrier.pending_count.b64 %x, %q0;
        mbarrier.arrive.shared::cta.b64 %q0, [%r1], 2;
        mbarrier.pending_count.b64 %y, %q0;
        OUT:"""
    return per_thread(
        "mbarrier.pending_count", "pending arrivals before each arrival", code, words=2, shared=_BARRIER
    )


def _named() -> list[Probe]:
    hand_over = """\
        mov.u32 %r0, room;
        mov.u32 %x, 0;
        setp.ge.u32 %p0, %thread, 64;
        @%p0 bra CONSUMER;
        mad.lo.u32 %r1, %thread, 4, %r0;
        mul.lo.u32 %r2, %thread, 77;
        st.shared.b32 [%r1], %r2;
        bar.arrive 1, 128;
        bra OUT;
        CONSUMER:
        bar.sync 1, 128;
        mad.lo.u32 %r1, %thread, 4, %r0;
        ld.shared.b32 %x, [%r1+-256];
        OUT:
        bar.sync 2;"""
    turns = """\
        mov.u32 %r0, room;
        mov.u32 %r3, 0;
        mov.u32 %x, 0;
        mad.lo.u32 %r1, %thread, 4, %r0;
        xor.b32 %r4, %thread, 64;
        mad.lo.u32 %r2, %r4, 4, %r0;
        AGAIN:
        add.u32 %r5, %thread, %x;
        st.shared.b32 [%r1], %r5;
        bar.sync 5, 128;
        ld.shared.b32 %r6, [%r2];
        mad.lo.u32 %x, %x, 3, %r6;
        barrier.cta.sync 6;
        add.u32 %r3, %r3, 1;
        setp.lt.u32 %p0, %r3, 5;
        @%p0 bra AGAIN;"""
    counted = """\
        setp.lt.u32 %p0, %thread, 37;
        barrier.cta.red.popc.u32 %x, 3, %p0;
        setp.lt.u32 %p1, %thread, 128;
        barrier.cta.red.and.pred %p2, 4, %p1;
        selp.u32 %y, 1, 0, %p2;"""
    shared = ".shared .align 16 .b8 room[512];"
    return [
        per_thread(
            "named_barrier.arrive_sync", "two warps arrive, two wait", hand_over, block=128, shared=shared
        ),
        per_thread("named_barrier.turns", "two barriers used five times", turns, block=128, shared=shared),
        per_thread(
            "named_barrier.reduction", "barrier.red popc and and", counted, words=2, block=128, shared=shared
        ),
    ]


def _dependent_launch() -> Probe:
    code = """\
        griddepcontrol.wait;
        griddepcontrol.launch_dependents;
        add.u32 %x, %thread, 5;"""
    return per_thread(
        "launch.griddepcontrol", "wait and launch_dependents in a launch of its own do nothing", code
    )


def _ring() -> Probe:
    """A producer warp and a consumer warp over two slots with full and empty barriers, seven rounds."""
    code = """\
        mov.u32 %r0, room;
        mov.u32 %r1, bars;
        @%lead mbarrier.init.shared::cta.b64 [%r1], 32;
        @%lead mbarrier.init.shared::cta.b64 [%r1+8], 32;
        @%lead mbarrier.init.shared::cta.b64 [%r1+16], 32;
        @%lead mbarrier.init.shared::cta.b64 [%r1+24], 32;
        bar.sync 0;
        and.b32 %r9, %thread, 31;
        mov.u32 %r2, 0;
        mov.u32 %x, 0;
        setp.ge.u32 %p0, %thread, 32;
        NEXT:
        and.b32 %r3, %r2, 1;
        shr.u32 %r4, %r2, 1;
        and.b32 %r4, %r4, 1;
        mad.lo.u32 %r5, %r3, 8, %r1;
        mad.lo.u32 %r6, %r3, 128, %r0;
        mad.lo.u32 %r6, %r9, 4, %r6;
        @%p0 bra CONSUMER;
        xor.b32 %r7, %r4, 1;
        EMPTY:
        mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r5+16], %r7;
        @!%p1 bra EMPTY;
        mad.lo.u32 %r8, %r2, 1000, %r9;
        st.shared.b32 [%r6], %r8;
        mbarrier.arrive.shared::cta.b64 _, [%r5];
        bra ROUND;
        CONSUMER:
        FULL:
        mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r5], %r4;
        @!%p1 bra FULL;
        ld.shared.b32 %r8, [%r6];
        mad.lo.u32 %x, %x, 5, %r8;
        mbarrier.arrive.shared::cta.b64 _, [%r5+16];
        ROUND:
        add.u32 %r2, %r2, 1;
        setp.lt.u32 %p2, %r2, 7;
        @%p2 bra NEXT;"""
    shared = ".shared .align 8 .b8 bars[32];\n.shared .align 16 .b8 room[256];"
    return per_thread(
        "mbarrier.ring", "producer and consumer over two slots, seven rounds", code, block=64, shared=shared
    )
