"""A copy into shared memory that others have read before: a barrier alone says that their loads were issued, a use of
a register or a proxy fence that they are over. PTX ISA, memory consistency model, "proxies"; what loads under way cost
on a card: docs/evidence/kernel_sm90a.md, "A race of packed slots".
"""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.run.run import SimResult
from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import run_body

# %r11: a word of each thread at 0, 256 bytes further one of a second slot; both are filled before anything else.
START = """
mov.u32 %r1, %tid.x;
mov.u32 %r10, smem;
ld.param.u64 %d1, [out];
mad.lo.u32 %r11, %r1, 4, %r10;
mad.wide.u32 %d2, %r1, 4, %d1;
setp.eq.u32 %p1, %r1, 0;
setp.gt.u32 %p2, %r1, 4096;
@!%p1 bra MADE;
mbarrier.init.shared.b64 [%r10+1024], 1;
fence.mbarrier_init.release.cluster;
MADE:
st.shared.u32 [%r11], %r1;
st.shared.u32 [%r11+256], %r1;
fence.proxy.async;
bar.sync 0;
"""
LOAD, LATER = "ld.shared.u32 %r5, [%r11];\n", "ld.shared.u32 %r6, [%r11+256];\n"
PACK = "mov.b64 %d3, {%r5, %r6};\n"
USE, USE_LATER = "add.u32 %r7, %r5, 1;\n", "add.u32 %r8, %r6, 1;\n"
MATRIX = """and.b32 %r3, %r1, 15;
mad.lo.u32 %r3, %r3, 16, %r10;
ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [%r3];
"""
FENCE = "fence.proxy.async.shared::cta;\n"
BARRIER = "bar.sync 0;\n"
END = "st.global.u32 [%d2+512], %r5;\n"


def copy(offset: int) -> str:
    """Thread 0 has 256 bytes copied to a slot."""
    return f"""@!%p1 bra COPIED;
mbarrier.arrive.expect_tx.shared.b64 _, [%r10+1024], 256;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10+{offset}], [%d1], 256, [%r10+1024];
WAITS: mbarrier.try_wait.parity.shared.b64 %p4, [%r10+1024], 0;
@!%p4 bra WAITS;
COPIED:
"""


FIRST, SECOND = copy(0), copy(256)


def run(body: str) -> SimResult:
    return run_body(START + body, np.zeros(256, np.uint32), block=(64, 1, 1), smem_bytes=2048)


CASES = {
    "used": (LOAD + USE + BARRIER + FIRST, False),
    "used behind the barrier": (LOAD + BARRIER + USE + FIRST + END, True),
    "fenced by the readers": (LOAD + FENCE + BARRIER + FIRST + END, False),
    "fenced by the one that copies": (LOAD + BARRIER + "@%p1 " + FENCE + FIRST + END, False),
    "fenced in global memory": (LOAD + "fence.proxy.async.global;\n" + BARRIER + FIRST + END, True),
    "fenced before the load": (FENCE + LOAD + BARRIER + FIRST + END, True),
    "moved": (LOAD + "mov.u32 %r7, %r5;\n" + BARRIER + FIRST + END, True),
    "moved and used": (LOAD + "mov.u32 %r7, %r5;\nadd.u32 %r8, %r7, 1;\n" + BARRIER + FIRST, False),
    "a later one used": (LOAD + LATER + USE_LATER + BARRIER + FIRST + END, True),
    "two packed and used": (LOAD + LATER + PACK + "add.u64 %d4, %d3, 1;\n" + BARRIER + FIRST, False),
    "two packed": (LOAD + LATER + PACK + BARRIER + SECOND + "add.u64 %d4, %d3, 1;\n", True),
    "overwritten": (LOAD + "add.u32 %r5, %r1, 7;\n" + BARRIER + FIRST + END, False),
    "an earlier one open": (LATER + LOAD + USE + BARRIER + FIRST + USE_LATER, False),
    "a later one open": (LOAD + USE + LATER + BARRIER + FIRST + USE_LATER, False),
    "the later slot": (LOAD + USE + LATER + BARRIER + SECOND + USE_LATER, True),
    "a use nobody executes": (LOAD + "@%p2 " + USE + BARRIER + FIRST + END, True),
    "used by one of two loads there": (LOAD + USE + LOAD + BARRIER + FIRST + END, True),
    "a matrix": (MATRIX + BARRIER + FIRST + END, True),
    "a matrix used": (MATRIX + USE + BARRIER + FIRST, False),
    "needed by nobody": (LOAD + BARRIER + FIRST, False),
}


@pytest.mark.parametrize("name", CASES)
def test_a_load_is_over_when_a_register_was_used_or_a_fence_came_behind_it(name: str) -> None:
    body, found = CASES[name]
    result = run(body)
    assert result.status is (SimStatus.RACE if found else SimStatus.OK), str(result)
    if found:
        assert "WAR on SMEM" in str(result) and "no register of it has been used" in str(result)


def test_a_generic_store_needs_no_use() -> None:
    """Accesses of one proxy are ordered by the barrier."""
    assert run(LOAD + BARRIER + "st.shared.u32 [%r11+128], 1;\n" + END).ok


def test_slots_read_ahead_in_a_loop() -> None:
    """Each turn loads the next slot before it uses the last one and gives that back; the other one is still open."""
    turn = """mov.u32 %r4, 0;
TURN: mov.u32 %r9, %r5;
ld.shared.u32 %r5, [%r11+256];
add.u32 %r7, %r9, 1;
bar.sync 0;
add.u32 %r4, %r4, 1;
setp.lt.u32 %p3, %r4, 3;
@%p3 bra TURN;
"""
    assert run(LOAD + turn + FIRST + END).ok
    assert run(LOAD + turn + SECOND + END).status is SimStatus.RACE
