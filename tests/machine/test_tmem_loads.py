"""A ``tcgen05.ld`` reads until it is waited for or its registers are used: each load on its own.

The oracle is PTX's text: a register dependency orders within a thread, waited for or not; all else needs ``wait::ld``.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import run_body

BODY = """
mov.u32 %r1, %tid.x;
shr.u32 %r2, %r1, 5;
mov.u32 %r10, smem;
ld.param.u64 %d1, [out];
setp.eq.u32 %p1, %r2, 0;
setp.eq.u32 %p2, %r2, 4;
@!%p1 bra READY;
setp.eq.u32 %p3, %r1, 0;
@!%p3 bra ALLOC;
mbarrier.init.shared.b64 [%r10+16], 32;
ALLOC:
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r10], 32;
READY:
bar.sync 0;
ld.shared.u32 %r3, [%r10];
@!%p1 bra OTHER;
tcgen05.st.sync.aligned.32x32b.x2.b32 [%r3], {{%r1, %r1}};
tcgen05.wait::st.sync.aligned;
tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r4}}, [%r3];
tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r5}}, [%r3+1];
{between}
mbarrier.arrive.shared.b64 _, [%r10+16];
mad.wide.u32 %d2, %r1, 4, %d1;
add.u32 %r6, %r4, %r5;
st.global.u32 [%d2], %r6;
bra END;
OTHER:
@!%p2 bra END;
LOOP:
mbarrier.try_wait.parity.shared.b64 %p4, [%r10+16], 0;
@!%p4 bra LOOP;
tcgen05.st.sync.aligned.32x32b.x1.b32 [%r3+{column}], {{%r1}};
tcgen05.wait::st.sync.aligned;
END:
bar.sync 0;
@!%p1 bra DONE;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r3, 32;
DONE:
"""
FIRST, SECOND, WAIT = "add.u32 %r7, %r4, 1;", "add.u32 %r7, %r5, 1;", "tcgen05.wait::ld.sync.aligned;"
COPIED, NEVER = "mov.b32 %r8, %r4;", "@%p1 bra PAST; {} PAST:"


@pytest.mark.parametrize(
    ("between", "column", "races"),
    [
        ("", 0, True),
        (FIRST, 0, False),
        (FIRST, 1, True),
        (FIRST + SECOND, 1, False),
        (WAIT, 1, False),
        (COPIED + "add.u32 %r7, %r8, 1;", 0, False),
        (COPIED, 0, True),
        (NEVER.format(FIRST), 0, True),
        ("@%p2 " + FIRST, 0, True),  # %p2 is false in warp 0
        ("@%p1 " + FIRST, 0, False),
    ],
    ids=[
        "nothing_used",
        "first_used",
        "second_not_used",
        "both_used",
        "waited",
        "copy_used",
        "copied",
        "used_behind_a_branch_not_taken",
        "used_under_a_false_guard",
        "used_under_a_guard",
    ],
)
def test_overwriting_what_a_load_reads(between: str, column: int, races: bool) -> None:
    """Warp 0 loads columns 0 and 1 and arrives; warp 4, of the same lanes, overwrites one of them."""
    out = np.zeros(32, np.uint32)
    result = run_body(BODY.format(between=between, column=column), out, block=(160, 1, 1), smem_bytes=64)
    assert result.status is (SimStatus.RACE if races else SimStatus.OK), str(result)
    if races:
        assert "WAR on TMEM" in str(result)
    assert out.tolist() == [2 * lane for lane in range(32)]


IN_A_LOOP = """
mov.u32 %r20, 0;
AGAIN:
setp.eq.u32 %p5, %r20, 0;
@%p5 bra LOAD;
mbarrier.arrive.shared.b64 _, [%r10+16];
bra LOADED;
LOAD:
tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r4}, [%r3];
{wait}
add.u32 %r20, %r20, 1;
bra AGAIN;
LOADED:
mov.u32 %r5, %r4;
"""


@pytest.mark.parametrize(("wait", "races"), [("", True), (WAIT, False), (FIRST, False)])
def test_an_arrival_that_stands_ahead_of_the_load_in_the_text(wait: str, races: bool) -> None:
    out = np.zeros(32, np.uint32)
    start, end = BODY.index("tcgen05.ld"), BODY.index("mad.wide.u32")
    text = BODY[:start] + IN_A_LOOP.replace("{wait}", wait).replace("{%r4}", "{{%r4}}") + BODY[end:]
    result = run_body(text.format(column=0), out, block=(160, 1, 1), smem_bytes=64)
    assert result.status is (SimStatus.RACE if races else SimStatus.OK), str(result)
