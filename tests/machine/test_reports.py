"""Deadlock, budget, fault and race reports of programs with one known mistake each."""

from __future__ import annotations

import numpy as np

from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import TWO_BARRIERS, program, run_body

NAMES = {"barrier_names": {0: "ab_full[0]", 8: "ab_full[1]"}, "roles": {0: "tma_warp", 1: "mma_warp"}}
WAIT = "LOOP:\nmbarrier.try_wait.parity.shared.b64 %p9, [%r10{at}], {parity};\n@!%p9 bra LOOP;\n"


def run(body: str, **options: object) -> object:
    return run_body(
        TWO_BARRIERS + body, np.zeros(64, np.uint32), smem_bytes=4096, block=(64, 1, 1), **NAMES, **options
    )


def test_nobody_arrives() -> None:
    result = run("setp.eq.u32 %p2, %r2, 0;\n@%p2 bra END;\n" + WAIT.format(at="+8", parity=0) + "END:")
    assert result.status is SimStatus.DEADLOCK
    text = str(result)
    assert "mma_warp waits for parity 0 on ab_full[1]: phase 0, pending 1/1" in text
    assert "likely cause: nobody ever arrives on ab_full[1]" in text
    assert "mbarrier.try_wait.parity" in text and "PTX line" in text


def test_missing_bytes() -> None:
    arm = "setp.eq.u32 %p2, %r1, 0;\n@%p2 mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 64;\n"
    result = run(arm + WAIT.format(at="", parity=0))
    assert "ab_full[0] expects 64 bytes more than arrived" in str(result)
    assert "last arrival: tma_warp" in str(result)


def test_missing_arrivals_at_a_named_barrier() -> None:
    result = run("setp.eq.u32 %p2, %r2, 0;\n@%p2 bra END;\nbar.sync 3, 64;\nEND:")
    assert result.status is SimStatus.DEADLOCK
    assert "32 of 64 threads never arrive at bar 3" in str(result)


def test_run_away_loop_ends_by_budget() -> None:
    result = run("mov.b32 %r5, 0;\nSPIN:\nadd.u32 %r5, %r5, 1;\nbra SPIN;", max_instructions=10_000)
    assert result.status is SimStatus.BUDGET_EXCEEDED
    assert "tma_warp" in str(result)


def test_global_access_behind_the_end() -> None:
    result = run("st.global.u32 [%d1+256], %r1;")
    assert result.status is SimStatus.ILLEGAL_ACCESS
    assert "0 bytes behind the end of out (256 bytes)" in str(result)
    assert "st.global.u32 [%d1+256]" in str(result)


def test_misaligned_and_foreign_shared_addresses() -> None:
    assert run("ld.shared.u32 %r5, [%r10+2];").status is SimStatus.ILLEGAL_ACCESS
    assert run("ld.shared.u32 %r5, [%r10+5000];").status is SimStatus.ILLEGAL_ACCESS
    assert run("add.u32 %r6, %r10, 0x1000000;\nst.shared.u32 [%r6], %r1;").status is SimStatus.ILLEGAL_ACCESS


def test_unsupported_names_line_opcode_and_modifier() -> None:
    result = run("min.xorsign.abs.f32 %r5, %r6, %r7;")
    line = program(TWO_BARRIERS + "min.xorsign.abs.f32").split("\n").index("min.xorsign.abs.f32") + 1
    assert result.status is SimStatus.UNSUPPORTED
    assert f"PTX line {line}: min.xorsign.abs.f32" in str(result) and "(modifier .xorsign)" in str(result)


def test_unknown_opcode_is_unsupported() -> None:
    result = run("istypep.texref %p1, %d1;")
    assert result.status is SimStatus.UNSUPPORTED
    assert "istypep.texref: opcode is not modelled" in str(result)


def race(body: str, **options: object) -> str:
    result = run(body, **options)
    assert result.status is SimStatus.RACE, str(result)
    return str(result)


SPLIT = "setp.eq.u32 %p2, %r2, 0;\n"


def test_write_and_read_without_synchronisation() -> None:
    text = race(SPLIT + "@!%p2 st.shared.u32 [%r10+64], %r1;\n@%p2 ld.shared.u32 %r5, [%r10+64];")
    assert "RAW on SMEM offset 0x440" in text
    assert "st.shared.u32" in text and "ld.shared.u32" in text
    assert "tma_warp" in text and "mma_warp" in text


def test_write_after_read() -> None:
    body = SPLIT + "@%p2 st.shared.u32 [%r10+64], %r1;\nbar.sync 1;\n"
    body += "@%p2 ld.shared.u32 %r5, [%r10+64];\n@!%p2 st.shared.u32 [%r10+64], %r1;"
    assert "WAR on SMEM" in race(body)


def test_barrier_orders_them() -> None:
    body = SPLIT + "@%p2 st.shared.u32 [%r10+64], %r1;\nbar.sync 1;\n"
    body += "ld.shared.u32 %r5, [%r10+64];\nbar.sync 1;\n@!%p2 st.shared.u32 [%r10+64], %r1;"
    assert run(body).ok


def test_neighbouring_words_do_not_race() -> None:
    assert run("mul.lo.u32 %r5, %r1, 4;\nadd.u32 %r5, %r5, %r10;\nst.shared.u32 [%r5+64], %r1;").ok


def test_bulk_store_needs_the_proxy_fence() -> None:
    body = """
    mul.lo.u32 %r5, %r1, 4;
    add.u32 %r5, %r5, %r10;
    st.shared.u32 [%r5+64], %r1;
    {fence}
    bar.sync 0;
    setp.ne.u32 %p3, %r1, 0;
    @%p3 bra END;
    cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r10+64], 256;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    END:
    """
    assert "no fence.proxy.async lies between them" in race(body.format(fence=""))
    assert run(body.format(fence="fence.proxy.async.shared::cta;")).ok


def test_bulk_store_source_reused_too_early() -> None:
    body = """
    mov.u32 %r5, 7;
    setp.ne.u32 %p3, %r1, 0;
    @%p3 bra END;
    st.shared.v4.u32 [%r10+64], {{%r5, %r5, %r5, %r5}};
    fence.proxy.async.shared::cta;
    cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r10+64], 16;
    cp.async.bulk.commit_group;
    {wait}
    st.shared.u32 [%r10+64], %r5;
    END:
    """
    assert "WAR on SMEM" in race(body.format(wait=""))
    assert run(body.format(wait="cp.async.bulk.wait_group.read 0;")).ok


def test_two_ctas_write_one_global_word() -> None:
    assert "WAW on global memory, byte 0 of out" in race("st.global.u32 [%d1], %r2;", grid=(2, 1, 1))


def test_release_and_acquire_order_global_memory() -> None:
    """CTA 0 writes and counts with release; CTA 1 spins on the counter and reads."""
    body = """
    mov.u32 %r5, %ctaid.x;
    setp.ne.u32 %p2, %r1, 0;
    @%p2 bra END;
    setp.ne.u32 %p3, %r5, 0;
    @%p3 bra READER;
    mov.u32 %r6, 42;
    st.global.u32 [%d1+16], %r6;
    atom.global.add.{release}.gpu.u32 %r7, [%d1], 1;
    bra END;
    READER:
    ld.acquire.gpu.global.u32 %r7, [%d1];
    setp.eq.u32 %p4, %r7, 0;
    @%p4 bra READER;
    ld.global.u32 %r8, [%d1+16];
    st.global.u32 [%d1+32], %r8;
    END:
    """
    for schedule in ("eager", "random"):
        result = run(body.format(release="release"), grid=(2, 1, 1), schedule=schedule)
        assert result.ok, str(result)
    assert "RAW on global memory" in race(body.format(release="relaxed"), grid=(2, 1, 1))


def test_barrier_used_before_its_initialisation_is_visible() -> None:
    body = SPLIT + "@!%p2 bra FIRST;\nmbarrier.arrive.shared.b64 _, [%r10+512];\nbra END;\nFIRST:\n"
    body += "setp.ne.u32 %p3, %r1, 32;\n@%p3 bra END;\nmbarrier.init.shared.b64 [%r10+512], 64;\nEND:"
    assert "before its initialisation is visible" in race(body)
