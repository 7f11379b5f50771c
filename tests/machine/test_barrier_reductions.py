"""``bar.red``: a barrier that also counts, or joins, a predicate of every thread. PTX ISA 9.7.13, "bar.red"."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import run_body

THREADS = 96
START = """
mov.u32 %r1, %tid.x;
ld.param.u64 %d1, [out];
mad.wide.u32 %d2, %r1, 12, %d1;
mov.u32 %r5, 0;
setp.lt.u32 %p1, %r1, {limit};
"""
REDUCE = """
{bar}.red.popc{aligned}.u32 %r2, 1, 96, %p1;
{bar}.red.and{aligned}.pred %p2, 1, 96, %p1;
{bar}.red.or{aligned}.pred %p3, 1, 96, {other};
selp.u32 %r3, 1, 0, %p2;
selp.u32 %r4, 1, 0, %p3;
st.global.u32 [%d2], %r2;
st.global.u32 [%d2+4], %r3;
st.global.u32 [%d2+8], %r4;
"""


@pytest.mark.parametrize(("bar", "aligned"), [("bar", ""), ("barrier.cta", ".aligned"), ("barrier", "")])
@pytest.mark.parametrize("limit", [0, 1, 70, 96])
def test_every_thread_gets_the_whole_blocks_answer(bar: str, aligned: str, limit: int) -> None:
    """The three follow each other on one barrier, so a slow warp's answer must not be a later one."""
    for schedule in ("eager", "random"):
        out = np.full((THREADS, 3), 7, np.uint32)
        body = START.format(limit=limit) + REDUCE.format(bar=bar, aligned=aligned, other="!%p1")
        result = run_body(body, out, block=(THREADS, 1, 1), schedule=schedule)
        assert result.ok, str(result)
        expected = [limit, int(limit == THREADS), int(limit < THREADS)]
        np.testing.assert_array_equal(out, np.broadcast_to(expected, out.shape))


def test_it_orders_as_a_barrier_does() -> None:
    """Thread 95 reads what thread 0 wrote; behind the reduction only."""
    body = START.format(limit=1) + (
        "@%p1 st.global.u32 [%d1], 5;\n{between}\n"
        "setp.eq.u32 %p4, %r1, 95;\n@%p4 ld.global.u32 %r2, [%d1];\n@%p4 st.global.u32 [%d1+64], %r2;\n"
    )
    out = np.zeros(32, np.uint32)
    result = run_body(body.replace("{between}", "bar.red.or.pred %p2, 0, %p1;"), out, block=(THREADS, 1, 1))
    assert result.ok and out[16] == 5, str(result)
    assert run_body(body.replace("{between}", ""), out, block=(THREADS, 1, 1)).status is SimStatus.RACE


def test_a_warp_that_does_not_come_is_a_deadlock() -> None:
    body = START.format(limit=64) + "@!%p1 bra END;\nbar.red.popc.u32 %r2, 1, 96, %p1;\nEND:"
    result = run_body(body, np.zeros(1, np.uint32), block=(THREADS, 1, 1))
    assert result.status is SimStatus.DEADLOCK, str(result)
