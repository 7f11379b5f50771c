"""Reads of registers that nobody wrote. What must be found follows from the programs, which are a few lines each."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.run.run import SimResult
from kernel_space.machine.translate.translate import translate
from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import program, run_body

STORE = """
ld.param.u64 %d0, [out];
mov.u32 %r200, %tid.x;
mul.wide.u32 %d1, %r200, 4;
add.u64 %d0, %d0, %d1;
st.global.b32 [%d0], {value};
"""
CHOICE = ".param .u64 out, .param .u32 choice"
LOAD_CHOICE = "ld.param.u32 %r1, [choice];\nsetp.ne.u32 %p1, %r1, 0;\n"


def run(body: str, *values: int, **options: object) -> tuple[SimResult, list[int]]:
    out = np.zeros(32, np.uint32)
    params = CHOICE if values else ".param .u64 out"
    return run_body(body, out, *values, params=params, **options), out.tolist()


def assert_found(result: SimResult, register: str, instruction: str, lanes: int = 32, first: int = 0) -> None:
    assert result.status is SimStatus.ILLEGAL_ACCESS
    assert len(result.findings) == 1
    text = result.findings[0].text
    assert f"register {register} is read but was never written in {lanes} of" in text
    assert f"first lane {first}\n" in text
    assert "PTX line" in text and instruction in text


@pytest.mark.parametrize(
    ("body", "register", "instruction"),
    [
        ("add.u32 %r2, %r7, 1;" + STORE.format(value="%r2"), "%r7", "add.u32 %r2, %r7"),
        ("mov.b32 %r2, %r7;", "%r7", "mov.b32 %r2, %r7"),
        (STORE.format(value="%r7"), "%r7", "st.global"),
        ("ld.global.b32 %r2, [%d9];", "%d9", "ld.global"),
        ("mov.b64 %d5, {%r7, %r7};", "%r7", "mov.b64 %d5"),
        ("selp.u32 %r2, 1, 0, %p4;", "%p4", "selp"),
        ("@%p4 mov.b32 %r2, 1;", "%p4", "mov.b32 %r2, 1"),
        ("and.pred %p2, %p4, %p4;", "%p4", "and.pred"),
        ("@%p4 bra DONE;\nmov.b32 %r2, 1;\nDONE:", "%p4", "bra"),
    ],
)
def test_read_of_a_register_nobody_wrote(body: str, register: str, instruction: str) -> None:
    result, _ = run(body)
    assert_found(result, register, instruction)


def test_the_finding_names_line_and_role() -> None:
    body = "mov.u32 %r1, %tid.x;\nsetp.lt.u32 %p1, %r1, 32;\n@%p1 bra DONE;\nadd.u32 %r2, %r7, 1;\nDONE:"
    result, _ = run(body, block=(64, 1, 1), roles={0: "loader", 1: "epilogue"})
    assert_found(result, "%r7", "add.u32 %r2, %r7, 1")
    line = program(body).splitlines().index("add.u32 %r2, %r7, 1;") + 1
    assert f"by epilogue at PTX line {line}:" in result.findings[0].text


def test_padding_of_a_pack_is_no_read() -> None:
    """NVVM writes this when only the low half is used: seen in a conversion of 16-bit halves."""
    body = "mov.b16 %h1, 5;\nmov.b32 %r2, {%h1, %h2};\nand.b32 %r3, %r2, 255;"
    result, out = run(body + STORE.format(value="%r3"))
    assert result.ok and out == [5] * 32


BRANCH = (
    LOAD_CHOICE + "@%p1 bra MEET;\nmov.b32 %r7, 5;\nMEET:\nadd.u32 %r2, %r7, 1;" + STORE.format(value="%r2")
)


def test_written_on_one_path_is_found_on_the_other() -> None:
    result, out = run(BRANCH, 0)
    assert result.ok and out == [6] * 32
    result, _ = run(BRANCH, 1)
    assert_found(result, "%r7", "add.u32 %r2, %r7, 1")


@pytest.mark.parametrize("long", [False, True], ids=["inlined", "branch"])
def test_written_by_some_lanes_and_read_by_all(long: bool) -> None:
    filler = "mov.b32 %r9, 1;\n" * (70 if long else 0)
    head = "mov.u32 %r1, %tid.x;\nsetp.ge.u32 %p1, %r1, 12;\n@%p1 bra MEET;\nmov.b32 %r7, 5;\n"
    result, _ = run(f"{head}{filler}MEET:\nadd.u32 %r2, %r7, 1;" + STORE.format(value="%r2"))
    assert_found(result, "%r7", "add.u32 %r2, %r7, 1", lanes=20, first=12)


def test_written_by_each_side_of_a_divergent_branch() -> None:
    body = (
        "mov.u32 %r1, %tid.x;\nsetp.ge.u32 %p1, %r1, 12;\n@%p1 bra HIGH;\nmov.b32 %r7, 5;\nbra MEET;\n"
        "HIGH:\nmov.b32 %r7, 9;\nMEET:" + STORE.format(value="%r7")
    )
    result, out = run(body)
    assert result.ok and out == [5] * 12 + [9] * 20


GUARDED = "mov.u32 %r1, %tid.x;\nsetp.lt.u32 %p1, %r1, 12;\n@%p1 mov.b32 %r7, 5;\n"


def test_predicated_write_then_read_by_the_same_lanes() -> None:
    result, out = run(f"{GUARDED}mov.b32 %r2, 0;\n@%p1 add.u32 %r2, %r7, 1;" + STORE.format(value="%r2"))
    assert result.ok and out == [6] * 12 + [0] * 20


def test_predicated_write_then_read_by_all() -> None:
    result, _ = run(f"{GUARDED}add.u32 %r2, %r7, 1;")
    assert_found(result, "%r7", "add.u32 %r2", lanes=20, first=12)


def test_two_predicated_writes_cover_the_warp() -> None:
    result, out = run(f"{GUARDED}@!%p1 mov.b32 %r7, 9;" + STORE.format(value="%r7"))
    assert result.ok and out == [5] * 12 + [9] * 20


@pytest.mark.parametrize("choice", [0, 1])
def test_uniform_predicate(choice: int) -> None:
    result, out = run(LOAD_CHOICE + "@%p1 mov.b32 %r7, 5;" + STORE.format(value="%r7"), choice)
    if choice:
        assert result.ok and out == [5] * 32
    else:
        assert_found(result, "%r7", "st.global")


def test_lanes_that_do_not_exist_need_not_write() -> None:
    body = LOAD_CHOICE + "@%p1 mov.b32 %r7, 5;" + STORE.format(value="%r7")
    result, out = run(body, 1, block=(8, 1, 1))
    assert result.ok and out == [5] * 8 + [0] * 24


def test_written_in_the_first_round_of_a_loop() -> None:
    body = (
        "mov.b32 %r1, 0;\nLOOP:\nsetp.eq.u32 %p1, %r1, {first};\n@%p1 mov.b32 %r7, 40;\nadd.u32 %r7, %r7, 1;\n"
        "add.u32 %r1, %r1, 1;\nsetp.lt.u32 %p2, %r1, 3;\n@%p2 bra LOOP;" + STORE.format(value="%r7")
    )
    result, out = run(body.replace("{first}", "0"))
    assert result.ok and out == [43] * 32
    result, _ = run(body.replace("{first}", "1"))
    assert_found(result, "%r7", "add.u32 %r7, %r7, 1")


def test_a_kernel_that_writes_first_has_no_tests_in_it() -> None:
    body = "mov.b32 %r7, 5;\nadd.u32 %r2, %r7, 1;" + STORE.format(value="%r2")
    result, out = run(body)
    assert result.ok and out == [6] * 32
    translated = translate(program(body), None)
    assert not translated.maybe_unwritten
    assert "written" not in translated.python_text(0, partial=True)
