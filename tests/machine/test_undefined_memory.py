"""Undefined bytes of shared, local, global and tensor memory, through loads, stores, copies and matrix moves."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import run_body
from tests.machine.undefined_programs import assert_left, assert_refused, line_of, run, store

SHARED = (
    "mov.u32 %r1, %tid.x;\nmov.u32 %r10, smem;\nmul.lo.u32 %r11, %r1, {step};\nadd.u32 %r11, %r10, %r11;\n"
)
EACH = SHARED.replace("{step}", "4")


# -- shared memory -----------------------------------------------------------------------------------------------------
def test_what_nobody_wrote_is_found_where_it_arrives() -> None:
    body = EACH + "ld.shared.b32 %r3, [%r11+128];" + store("%r3")
    result, out = run(body)
    line, stored = line_of(body, "ld.shared"), line_of(body, "st.global")
    assert_left(
        result, 128, 0, f"stored by warp0 at PTX line {stored}",
        f"born as SMEM offset 0x480, never written; first read by warp0 at PTX line {line}: ld.shared.b32 %r3",
    )  # fmt: skip
    assert out == [0xFFFFFFFF] * 32


def test_ragged_rows_that_are_read_and_discarded() -> None:
    """Twelve lanes fill their word, all read theirs, and the others take a constant instead."""
    body = EACH + (
        "setp.lt.u32 %p1, %r1, 12;\n@%p1 st.shared.b32 [%r11], %r1;\nld.shared.b32 %r3, [%r11];\n"
        "selp.b32 %r3, %r3, 77, %p1;"
    )
    result, out = run(body + store("%r3"))
    assert result.ok and out == [*range(12), *[77] * 20]
    result, _ = run(body.replace("selp.b32 %r3, %r3, 77", "selp.b32 %r3, 77, %r3") + store("%r3"))
    assert_left(result, 80, 48, "SMEM offset 0x430, never written")


@pytest.mark.parametrize(
    ("write", "read", "count"),
    [
        ("st.shared.b8 [%r11+1], %r1;", "ld.shared.b32 %r3, [%r11];", 96),
        ("st.shared.b8 [%r11+1], %r1;", "ld.shared.u8 %r3, [%r11+1];", 0),
        ("st.shared.b16 [%r11], %r1;", "ld.shared.u16 %r3, [%r11];", 0),
        ("st.shared.b16 [%r11], %r1;", "ld.shared.u16 %r3, [%r11+2];", 64),
        ("st.shared.b16 [%r11], %r1;", "ld.shared.s16 %r3, [%r11+2];", 128),
        ("st.shared.v2.b16 [%r11], {%h1, %h2};", "ld.shared.b32 %r3, [%r11];", 64),  # h1 is written
        ("st.shared.b32 [%r11], %r7;", "ld.shared.b32 %r3, [%r11];", 128),
    ],
)
def test_bytes_of_a_word(write: str, read: str, count: int) -> None:
    result, _ = run(f"{EACH}mov.b16 %h1, 5;\n{write}\n{read}" + store("%r3"))
    if count:
        assert result.findings and f"out holds {count} undefined bytes" in result.findings[0].text
    else:
        assert result.ok, str(result)


def test_an_undefined_value_in_shared_memory_keeps_its_birth() -> None:
    result, _ = run(EACH + "st.shared.b32 [%r11], %r7;\nld.shared.b32 %r3, [%r11];" + store("%r3"))
    assert_left(result, 128, 0, "born as register %r7, never written; first read by warp0", "st.shared.b32")


def test_a_later_store_of_something_defined_ends_it() -> None:
    body = EACH + "st.shared.b32 [%r11], %r7;\nst.shared.b32 [%r11], %r1;\nld.shared.b32 %r3, [%r11];"
    result, out = run(body + store("%r3"))
    assert result.ok and out == list(range(32))


def test_vectors_of_sixteen_bytes() -> None:
    """The third element of each lane's four is undefined."""
    body = SHARED.replace("{step}", "16") + (
        "st.shared.v4.b32 [%r11], {%r1, %r1, %r7, %r1};\nld.shared.v4.b32 {%r20, %r21, %r22, %r23}, [%r11];"
    )
    for register, left in ((20, 0), (21, 0), (22, 128), (23, 0)):
        result, _ = run(body + store(f"%r{register}"))
        assert result.ok if not left else result.status is SimStatus.ILLEGAL_ACCESS, str(result)


def test_one_address_for_all_lanes() -> None:
    body = EACH + "st.shared.b32 [%r10+64], {value};\nld.shared.b32 %r3, [%r10+64];"
    assert run(body.format(value="%r1") + store("%r3"))[0].ok
    assert_left(run(body.format(value="%r7") + store("%r3"))[0], 128, 0, "register %r7")


def test_an_address_that_was_read_from_nowhere() -> None:
    body = EACH + "ld.shared.b32 %r3, [%r11];\nadd.u32 %r3, %r3, %r10;\nld.shared.b32 %r4, [%r3];"
    assert_refused(run(body)[0], "the address", "%r3", "SMEM offset 0x400, never written")


def test_atomics() -> None:
    """An atomic sum needs the old value; an exchange does not."""
    body = EACH + "atom.shared.{how}.b32 %r3, [%r11], 5;\nld.shared.b32 %r4, [%r11];"
    add = body.format(how="add").replace("b32 %r3", "u32 %r3")
    assert_left(run(add + store("%r4"))[0], 128, 0, "SMEM offset 0x400")
    result, out = run(body.format(how="exch") + store("%r4"))
    assert result.ok and out == [5] * 32
    assert_left(run(body.format(how="exch") + store("%r3"))[0], 128, 0, "SMEM offset 0x400")


def test_a_split_k_sum_into_memory_of_the_host() -> None:
    body = "ld.param.u64 %d1, [out];\nred.global.add.u32 [%d1], {value};"
    assert run("mov.b32 %r1, 2;" + body.format(value="%r1"))[0].ok
    assert_left(run(body.format(value="%r7"))[0], 4, 0, "register %r7")


# -- matrices ----------------------------------------------------------------------------------------------------------
def test_matrix_moves() -> None:
    """Row 3 of an 8x8 matrix of halves is undefined: registers of lanes 12 to 15, or, transposed, one half of each
    register: row 3 is the second element of column pair 1, lanes 4 t + 1."""
    rows = SHARED.replace("{step}", "16") + (
        "setp.lt.u32 %p1, %r1, 8;\nsetp.ne.and.u32 %p2, %r1, 3, %p1;\n"
        "@%p2 st.shared.v4.b32 [%r11], {%r1, %r1, %r1, %r1};\nbar.sync 0;\n"
    )
    plain = rows + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r3}, [%r11];"
    assert_left(run(plain + store("%r3"))[0], 16, 48, "SMEM offset 0x430, never written")
    turned = plain.replace("shared.b16", "trans.shared.b16")
    assert_left(run(turned + store("%r3"))[0], 16, 6)
    written = plain + (
        "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r11+1024], {%r3};\nbar.sync 0;\nand.b32 %r12, %r1, 7;\n"
        "mul.lo.u32 %r12, %r12, 16;\nadd.u32 %r12, %r12, %r10;\nld.shared.b32 %r4, [%r12+1036];"
    )
    assert_left(run(written + store("%r4"))[0], 16, 12, "SMEM offset 0x430, never written")


# -- local memory ------------------------------------------------------------------------------------------------------
LOCAL = ".local .align 16 .b8 depot[32];\n"


@pytest.mark.parametrize(("write", "count"), [("st.local.v2.b32 [%d2], {%r1, %r1};", 0), ("", 128)])
def test_local_memory(write: str, count: int) -> None:
    body = f"{LOCAL}mov.u32 %r1, %tid.x;\nmov.u64 %d2, depot;\n{write}\nld.local.b32 %r3, [%d2+4];" + store(
        "%r3"
    )
    result, out = run(body)
    if count:
        assert_left(result, count, 0, "local memory offset", "ld.local")
    else:
        assert result.ok and out == list(range(32))


# -- global memory -----------------------------------------------------------------------------------------------------
def test_what_is_overwritten_before_the_end_is_let_pass() -> None:
    result, out = run(store("%r7") + "mov.b32 %r8, 4;\nst.global.b32 [%d60], %r8;")
    assert result.ok and out == [4] * 32


def test_through_global_memory_to_the_host() -> None:
    """A word of a workspace is undefined; what is made of it is too."""
    out, workspace = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
    body = (
        "ld.param.u64 %d1, [workspace];\nst.global.b32 [%d1], %r7;\nld.global.b32 %r3, [%d1];\n"
        "mov.b32 %r9, 1;\nst.global.b32 [%d1], %r9;\nadd.u32 %r3, %r3, 1;"
    ) + store("%r3")
    result = run_body(body, out, workspace, params=".param .u64 out, .param .u64 workspace")
    assert_left(result, 128, 0, "born as register %r7")


# -- copies ------------------------------------------------------------------------------------------------------------
BULK = EACH + (
    "setp.lt.u32 %p1, %r1, {rows};\n@%p1 st.shared.b32 [%r11], %r1;\nfence.proxy.async.shared::cta;\nbar.sync 0;\n"
    "setp.ne.u32 %p3, %r1, 0;\n@%p3 bra END;\nld.param.u64 %d1, [out];\n"
    "cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r10], 128;\ncp.async.bulk.commit_group;\n"
    "cp.async.bulk.wait_group 0;\nEND:"
)


def test_bulk_store() -> None:
    result, out = run(BULK.format(rows=32))
    assert result.ok and out == list(range(32))
    result, _ = run(BULK.format(rows=30))
    assert_left(result, 8, 120, "SMEM offset 0x478, never written", "stored by warp0", "cp.async.bulk.global")


def test_bulk_load_defines_what_it_brings() -> None:
    source, out = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    body = EACH + (
        "setp.ne.u32 %p3, %r1, 0;\n@%p3 bra READY;\nmbarrier.init.shared.b64 [%r10], 1;\n"
        "ld.param.u64 %d1, [source];\nmbarrier.arrive.expect_tx.shared.b64 _, [%r10], 64;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10+128], [%d1], 64, [%r10];\nREADY:\n"
        "bar.sync 0;\nWAIT:\nmbarrier.try_wait.parity.shared.b64 %p4, [%r10], 0;\n@!%p4 bra WAIT;\n"
        "ld.shared.b32 %r3, [%r11+128];"
    )
    result = run_body(
        body + store("%r3"), out, source, params=".param .u64 out, .param .u64 source", smem_bytes=1024
    )
    assert out[:16].tolist() == list(range(16))
    assert_left(result, 64, 64, "SMEM offset 0x4c0, never written")


@pytest.mark.parametrize(("used", "count"), [("16", 0), ("4", 0)])
def test_cp_async_fills_the_rest_with_zeros(used: str, count: int) -> None:
    source, out = np.full(128, 7, np.uint32), np.zeros(32, np.uint32)
    body = SHARED.replace("{step}", "16") + (
        "ld.param.u64 %d1, [source];\nmul.wide.u32 %d2, %r1, 16;\nadd.u64 %d1, %d1, %d2;\n"
        f"cp.async.ca.shared.global [%r11], [%d1], 16, {used};\ncp.async.wait_all;\nld.shared.b32 %r3, [%r11+12];"
    )
    result = run_body(
        body + store("%r3"), out, source, params=".param .u64 out, .param .u64 source", smem_bytes=1024
    )
    assert result.ok and out.tolist() == [7 if used == "16" else 0] * 32


# -- tensor memory -----------------------------------------------------------------------------------------------------
TENSOR = EACH + (
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r10], 32;\nbar.sync 0;\nld.shared.b32 %r20, [%r10];\n"
    "{write}tcgen05.wait::st.sync.aligned;\ntcgen05.ld.sync.aligned.32x32b.x2.b32 {{%r21, %r22}}, [%r20];\n"
    "tcgen05.wait::ld.sync.aligned;\ntcgen05.dealloc.cta_group::1.sync.aligned.b32 %r20, 32;"
)


@pytest.mark.parametrize(
    ("write", "register", "birth"),
    [
        ("tcgen05.st.sync.aligned.32x32b.x1.b32 [%r20], {%r1};\n", "%r21", ""),
        ("tcgen05.st.sync.aligned.32x32b.x1.b32 [%r20], {%r1};\n", "%r22", "TMEM column 1, never written"),
        ("tcgen05.st.sync.aligned.32x32b.x2.b32 [%r20], {%r1, %r7};\n", "%r21", ""),
        ("tcgen05.st.sync.aligned.32x32b.x2.b32 [%r20], {%r1, %r7};\n", "%r22", "register %r7"),
    ],
)
def test_tensor_memory(write: str, register: str, birth: str) -> None:
    result, out = run(TENSOR.format(write=write) + store(register))
    if birth:
        assert_left(result, 128, 0, birth)
    else:
        assert result.ok and out == list(range(32))


def test_columns_that_are_allocated_again_begin_a_new_life() -> None:
    first = TENSOR.format(write="tcgen05.st.sync.aligned.32x32b.x2.b32 [%r20], {%r1, %r1};\n")
    again = (
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r10+8], 32;\nld.shared.b32 %r20, [%r10+8];\n"
        "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r21}, [%r20];\ntcgen05.wait::ld.sync.aligned;\n"
        "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r20, 32;"
    )
    assert_left(run(first + again + store("%r21"))[0], 128, 0, "TMEM column 0, never written")


def test_without_race_checking_memory_counts_as_defined() -> None:
    body = EACH + "ld.shared.b32 %r3, [%r11];"
    assert run(body + store("%r3"), check_races=False)[0].ok
    assert_left(run(store("%r7"), check_races=False)[0], 128, 0, "register %r7")


@pytest.mark.parametrize(
    "instruction", ["red.shared.add.u32 [%r11], 5;", "atom.shared.add.u32 _, [%r11], 5;"]
)
def test_a_reduction_brings_nothing_to_the_next_load(instruction: str) -> None:
    body = (
        EACH
        + f"st.shared.v2.b32 [%r10+1024], {{%r1, %r1}};\n{instruction}\nld.shared.v2.b32 {{%r3, %r4}}, [%r10+1024];"
    )
    result, out = run(body + store("%r3"))
    assert result.ok and out == [31] * 32, str(result)
    assert_left(run(body + f"ld.shared.b32 %r3, [%r11];{store('%r3')}")[0], 128, 0, "SMEM offset 0x400")
