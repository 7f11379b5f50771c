"""Undefined values in registers: where they may go, and where they may not. What must be found follows from the
programs, which are a few lines each; the bits that stay undefined are counted by hand."""

from __future__ import annotations

import pytest

from kernel_space.machine.translate.translate import translate
from tests.machine.ptx import program
from tests.machine.undefined_programs import LOAD_CHOICE, assert_left, assert_refused, line_of, run, store

LANE = "mov.u32 %r1, %tid.x;\n"
GUARDED = LANE + "setp.lt.u32 %p1, %r1, 12;\n@%p1 mov.b32 %r7, 5;\n"


# -- what is found -----------------------------------------------------------------------------------------------------
def test_a_finding_names_birth_and_arrival() -> None:
    body = LANE + "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra DONE;\nadd.u32 %r2, %r7, 1;" + store("%r2") + "DONE:"
    body = body.replace("%tid.x;\nmul", "%laneid;\nmul")  # the second warp stores
    result, _ = run(body, block=(64, 1, 1), roles={0: "loader", 1: "epilogue"})
    born, stored = line_of(body, "add.u32 %r2"), line_of(body, "st.global")
    assert_left(
        result, 128, 0, f"stored by epilogue at PTX line {stored}: st.global",
        f"born as register %r7, never written; first read by epilogue at PTX line {born}: add.u32 %r2, %r7, 1",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "what", "register", "reader"),
    [
        ("ld.global.b32 %r2, [%d9];", "the address", "%d9", "ld.global"),
        ("add.u64 %d8, %d9, 8;\nld.global.b32 %r2, [%d8];", "the address", "%d8", "add.u64"),
        ("mov.b32 %r2, 1;\nst.global.b32 [%d9], %r2;", "the address", "%d9", "st.global"),
        ("atom.global.add.u32 %r2, [%d9], 1;", "the address", "%d9", "atom"),
        ("@%p4 mov.b32 %r2, 1;", "the guard", "%p4", "@%p4 mov.b32 %r2, 1"),
        ("@%p4 bra DONE;\nmov.b32 %r2, 1;\nDONE:", "the predicate of the branch", "%p4", "@%p4 bra"),
        ("setp.lt.u32 %p4, %r7, 3;\n@%p4 bra DONE;\nmov.b32 %r2, 1;\nDONE:", "the predicate", "%p4", "setp"),
        ("mov.u32 %r10, smem;\nmbarrier.init.shared.b64 [%r10], %r7;", "mbarrier.init", "%r7", "mbarrier"),
        ("mov.u32 %r10, smem;\nmbarrier.init.shared.b64 [%r10], 1;\n"
         "mbarrier.arrive.expect_tx.shared.b64 _, [%r10], %r7;", "mbarrier.arrive", "%r7", "mbarrier.arrive"),
        ("bar.sync %r7;", "bar.sync", "%r7", "bar.sync"),
        ("shfl.sync.idx.b32 %r2, 5, 0, 31, %r7;", "the member mask", "%r7", "shfl"),
        ("elect.sync _|%p1, %r7;", "the member mask", "%r7", "elect"),
        ("mov.u32 %r10, smem;\nld.param.u64 %d1, [out];\n"
         "cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r10], %r7;", "cp.async.bulk", "%r7", "cp.async"),
    ],
)  # fmt: skip
def test_what_decides_must_be_defined(body: str, what: str, register: str, reader: str) -> None:
    result, _ = run(body)
    assert what in result.findings[-1].text
    assert_refused(result, "", register, reader, "never written")


def test_written_on_one_path_is_found_on_the_other() -> None:
    body = LOAD_CHOICE + "@%p1 bra MEET;\nmov.b32 %r7, 5;\nMEET:\nadd.u32 %r2, %r7, 1;" + store("%r2")
    result, out = run(body, 0)
    assert result.ok and out == [6] * 32
    assert_left(run(body, 1)[0], 128, 0, "register %r7", "add.u32 %r2, %r7, 1")


@pytest.mark.parametrize("long", [False, True], ids=["inlined", "branch"])
def test_written_by_some_lanes_and_read_by_all(long: bool) -> None:
    filler = "mov.b32 %r9, 1;\n" * (70 if long else 0)
    head = LANE + "setp.ge.u32 %p1, %r1, 12;\n@%p1 bra MEET;\nmov.b32 %r7, 5;\n"
    result, out = run(f"{head}{filler}MEET:\nadd.u32 %r2, %r7, 1;" + store("%r2"))
    assert_left(result, 80, 48, "register %r7")
    assert out[:12] == [6] * 12


def test_predicated_write_then_read_by_all() -> None:
    assert_left(run(GUARDED + "add.u32 %r2, %r7, 1;" + store("%r2"))[0], 80, 48)


@pytest.mark.parametrize("choice", [0, 1])
def test_uniform_predicate(choice: int) -> None:
    result, out = run(LOAD_CHOICE + "@%p1 mov.b32 %r7, 5;" + store("%r7"), choice)
    if choice:
        assert result.ok and out == [5] * 32
    else:
        assert_left(result, 128, 0, "register %r7", "st.global")


# -- what is let pass --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "body",
    [
        "add.u32 %r2, %r7, 1;",
        "mov.b32 %r2, %r7;",
        "mov.b64 {_, %r2}, %d7;",
        "mov.b64 %d5, {%r7, %r7};",
        "selp.u32 %r2, 1, 0, %p4;",
        "and.pred %p2, %p4, %p4;",
        "shfl.sync.bfly.b32 %r2, %r7, 1, 31, 0xffffffff;",
        "setp.lt.u32 %p2, %r7, 5;",
        "mov.u32 %r10, smem;\nst.shared.b32 [%r10], %r7;\nld.shared.b32 %r2, [%r10];",
    ],
)
def test_a_value_that_decides_nothing_may_be_undefined(body: str) -> None:
    result, out = run(body + "\nmov.b32 %r3, 7;" + store("%r3"))
    assert result.ok and out == [7] * 32, str(result)


def test_written_by_each_side_of_a_divergent_branch() -> None:
    body = (
        LANE + "setp.ge.u32 %p1, %r1, 12;\n@%p1 bra HIGH;\nmov.b32 %r7, 5;\nbra MEET;\n"
        "HIGH:\nmov.b32 %r7, 9;\nMEET:" + store("%r7")
    )
    result, out = run(body)
    assert result.ok and out == [5] * 12 + [9] * 20


def test_predicated_write_then_read_by_the_same_lanes() -> None:
    result, out = run(f"{GUARDED}mov.b32 %r2, 0;\n@%p1 add.u32 %r2, %r7, 1;" + store("%r2"))
    assert result.ok and out == [6] * 12 + [0] * 20


def test_two_predicated_writes_cover_the_warp() -> None:
    result, out = run(f"{GUARDED}@!%p1 mov.b32 %r7, 9;" + store("%r7"))
    assert result.ok and out == [5] * 12 + [9] * 20


def test_a_load_under_a_false_predicate_keeps_what_nobody_uses() -> None:
    """Ragged edges: lanes past the end load nothing, compute with what is there and store nothing."""
    body = LANE + (
        "setp.lt.u32 %p1, %r1, 12;\nld.param.u64 %d1, [out];\nmul.wide.u32 %d2, %r1, 4;\nadd.u64 %d1, %d1, %d2;\n"
        "@%p1 ld.global.b32 %r7, [%d1];\nadd.u32 %r8, %r7, 3;\n@%p1 st.global.b32 [%d1], %r8;"
    )
    result, out = run(body)
    assert result.ok and out == [3] * 12 + [0] * 20
    result, _ = run(body.replace("@%p1 st.global", "st.global"))
    assert_left(result, 80, 48, "register %r7")


def test_lanes_that_do_not_exist_need_not_write() -> None:
    body = LOAD_CHOICE + "@%p1 mov.b32 %r7, 5;" + store("%r7")
    result, out = run(body, 1, block=(8, 1, 1))
    assert result.ok and out == [5] * 8 + [0] * 24


def test_written_in_the_first_round_of_a_loop() -> None:
    body = (
        "mov.b32 %r1, 0;\nLOOP:\nsetp.eq.u32 %p1, %r1, {first};\n@%p1 mov.b32 %r7, 40;\nadd.u32 %r7, %r7, 1;\n"
        "add.u32 %r1, %r1, 1;\nsetp.lt.u32 %p2, %r1, 3;\n@%p2 bra LOOP;" + store("%r7")
    )
    for first, value in (("0", 43), ("1", 42)):
        result, out = run(body.replace("{first}", first))
        assert result.ok and out == [value] * 32
    assert_left(run(body.replace("{first}", "3"))[0], 128, 0, "add.u32 %r7, %r7, 1")


# -- bits --------------------------------------------------------------------------------------------------------------
HALF = "mov.b16 %h1, 5;\nmov.b32 %r2, {%h1, %h2};\n"  # the upper half of r2 is undefined
BYTE = "mov.b32 %r9, 7;\nand.b32 %r3, %r7, 0xff00;\nor.b32 %r2, %r3, %r9;\n"  # bits 8 to 15 are


@pytest.mark.parametrize(
    ("body", "undefined"),
    [
        (HALF + "mov.b32 %r3, %r2;", 2),
        (HALF + "and.b32 %r3, %r2, 255;", 0),
        (HALF + "and.b32 %r3, %r2, 0x1ffff;", 1),
        (HALF + "or.b32 %r3, %r2, 0xffff0000;", 0),
        (HALF + "xor.b32 %r3, %r2, %r2;", 2),
        (HALF + "not.b32 %r3, %r2;", 2),
        (HALF + "lop3.b32 %r3, %r2, 0xffff, 0, 0xc0;", 0),  # a & b
        (HALF + "lop3.b32 %r3, %r2, 0xffff, 0, 0x3c;", 2),  # a ^ b
        (HALF + "shl.b32 %r3, %r2, 16;", 0),
        (HALF + "shl.b32 %r3, %r2, 8;", 1),
        (HALF + "shr.u32 %r3, %r2, 16;", 2),
        (HALF + "shr.u32 %r3, %r2, 24;", 1),
        (HALF + "shr.s32 %r3, %r2, 24;", 4),
        (HALF + "shf.l.wrap.b32 %r3, %r2, 0, 16;", 2),
        (HALF + "prmt.b32 %r3, %r2, 0, 0x4410;", 0),
        (HALF + "prmt.b32 %r3, %r2, 0, 0x4420;", 1),
        (HALF + "prmt.b32 %r3, %r2, 0, 0x444a;", 1),  # the sign of byte 2, replicated
        (HALF + "bfe.u32 %r3, %r2, 4, 12;", 0),
        (HALF + "bfe.u32 %r3, %r2, 12, 8;", 1),
        (HALF + "bfi.b32 %r3, %r2, 0, 8, 16;", 0),
        (HALF + "bfi.b32 %r3, 0, %r2, 16, 16;", 0),
        (HALF + "add.u32 %r3, %r2, 1;", 2),
        (BYTE + "add.u32 %r3, %r2, 1;", 3),  # the carry goes up, never down
        (BYTE + "mul.lo.u32 %r3, %r2, 3;", 3),
        (BYTE + "mul.hi.u32 %r3, %r2, 3;", 4),
        (BYTE + "min.u32 %r3, %r2, 3;", 4),
        (HALF + "add.f16x2 %r3, %r2, %r2;", 2),
        (HALF + "mov.b32 {%h4, %h5}, %r2;\nmov.b32 %r3, {%h4, %h4};", 0),
        (HALF + "mov.b32 {%h4, %h5}, %r2;\nmov.b32 %r3, {%h5, %h4};", 2),
        (HALF + "cvt.u32.u16 %r3, %h1;", 0),
        (HALF + "cvt.u32.u16 %r3, %h2;", 2),
        (HALF + "cvt.s32.s16 %r3, %h2;", 4),
        (HALF + "mov.b64 %d3, {%r2, %r9};\nmov.b64 {%r3, _}, %d3;", 2),
        ("mov.b32 %r9, 4;\nmov.b64 %d3, {%r7, %r9};\nmov.b64 {_, %r3}, %d3;", 0),
        (HALF + "selp.b32 %r3, %r2, 0, 0;\n".replace(", 0;\n", ", %p1;\n"), 0),
        (HALF + "mov.b32 %r9, 1;\nselp.b32 %r3, %r2, %r9, %p2;", 2),
        ("selp.b32 %r3, 1, 0, %p4;", 4),
        (HALF + "setp.eq.u32 %p3, %r2, 6;\nselp.b32 %r3, 1, 0, %p3;", 0),  # 5 is not 6, whatever is above
        (HALF + "setp.eq.u32 %p3, %r2, 5;\nselp.b32 %r3, 1, 0, %p3;", 4),
        (HALF + "setp.lt.u32 %p3, %r2, 5;\nselp.b32 %r3, 1, 0, %p3;", 4),
        ("setp.lt.and.u32 %p3, %r7, 5, %p1;\nselp.b32 %r3, 1, 0, %p3;", 0),
        ("setp.lt.and.u32 %p3, %r7, 5, %p2;\nselp.b32 %r3, 1, 0, %p3;", 4),
        ("setp.lt.or.u32 %p3, %r7, 5, %p2;\nselp.b32 %r3, 1, 0, %p3;", 0),
        ("and.pred %p3, %p4, %p1;\nselp.b32 %r3, 1, 0, %p3;", 0),
        ("or.pred %p3, %p4, %p1;\nselp.b32 %r3, 1, 0, %p3;", 4),
        ("add.cc.u32 %r4, %r7, 1;\naddc.u32 %r3, 0, 0;", 4),
        ("cvt.rn.f16x2.f32 %r3, %r7, 0f3f800000;", 2),
    ],
)  # fmt: skip
def test_bits_that_stay_undefined(body: str, undefined: int) -> None:
    """Bytes of each lane's word that hold an undefined bit. p1 is false, p2 true."""
    known = "setp.ne.u32 %p1, 0, 0;\nsetp.eq.u32 %p2, 0, 0;\nmov.b32 %r9, 0;\n"
    result, _ = run(known + body + store("%r3"))
    if undefined:
        assert result.findings and f"out holds {32 * undefined} undefined bytes" in result.findings[0].text
    else:
        assert result.ok, str(result)


# -- lanes -------------------------------------------------------------------------------------------------------------
ONE_LANE = LANE + "setp.ne.u32 %p1, %r1, 3;\n@%p1 mov.b32 %r7, 5;\n"  # undefined in lane 3 only


@pytest.mark.parametrize(
    ("body", "count", "first"),
    [
        ("shfl.sync.bfly.b32 %r3, %r7, 1, 31, 0xffffffff;", 4, 8),  # goes to lane 2
        ("shfl.sync.idx.b32 %r3, %r7, 3, 31, 0xffffffff;", 128, 0),
        ("shfl.sync.idx.b32 %r3, %r7, 4, 31, 0xffffffff;", 0, 0),
        ("shfl.sync.up.b32 %r3, %r7, 2, 0, 0xffffffff;", 8, 12),  # lane 3 keeps its own... see below
        ("redux.sync.add.u32 %r3, %r7, 0xffffffff;", 128, 0),
        ("setp.eq.u32 %p2, %r7, 5;\nvote.sync.ballot.b32 %r3, %p2, 0xffffffff;", 32, 0),
        ("setp.eq.u32 %p2, %r7, 5;\nvote.sync.any.pred %p3, %p2, 0xffffffff;\nselp.b32 %r3, 1, 0, %p3;", 0, 0),
        ("setp.eq.u32 %p2, %r7, 5;\nvote.sync.all.pred %p3, %p2, 0xffffffff;\nselp.b32 %r3, 1, 0, %p3;", 128, 0),
        ("setp.eq.u32 %p2, %r7, 6;\nvote.sync.all.pred %p3, %p2, 0xffffffff;\nselp.b32 %r3, 1, 0, %p3;", 0, 0),
    ],
)  # fmt: skip
def test_collectives_pass_on_the_lanes_that_they_read(body: str, count: int, first: int) -> None:
    if "shfl.sync.up" in body:  # lane 5 reads lane 3, and no lane reads itself but 0 and 1
        count, first = 4, 20
    result, _ = run(ONE_LANE + body + store("%r3"))
    if count:
        assert_left(result, count, first, "register %r7")
    else:
        assert result.ok, str(result)


def test_an_address_is_looked_at_in_the_lanes_that_use_it() -> None:
    body = ONE_LANE.replace("%r7, 5", "%r7, 0") + (
        "ld.param.u64 %d1, [out];\ncvt.u64.u32 %d2, %r7;\nadd.u64 %d1, %d1, %d2;\n{guard}ld.global.b32 %r8, [%d1];"
    )
    assert run(body.replace("{guard}", "@%p1 "))[0].ok
    assert_refused(run(body.replace("{guard}", ""))[0], "the address", "%d1", "first lane 3", lanes=1)


# -- cost --------------------------------------------------------------------------------------------------------------
def test_a_kernel_without_loads_that_writes_first_has_no_tests_in_it() -> None:
    body = "mov.b32 %r7, 5;\nadd.u32 %r2, %r7, 1;" + store("%r2")
    result, out = run(body)
    assert result.ok and out == [6] * 32
    translated = translate(program(body), None)
    assert not translated.maybe_unwritten and not translated.maybe_undefined
    assert "undefined" not in translated.python_text(0, partial=True)
