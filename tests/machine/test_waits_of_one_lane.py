"""An acquire is for the threads that execute it; the others of the warp have what it brought when they have met them.
PTX ISA, memory consistency model, "morally strong", "causality order". In each pair one program lacks the meeting.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.run.run import SimResult
from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import run_body

# Warp 1 writes 32 words and says so, by an mbarrier and by a flag in global memory; warp 0 reads them.
START = """
mov.u32 %r1, %tid.x;
mov.u32 %r10, smem;
ld.param.u64 %d1, [out];
and.b32 %r2, %r1, 31;
mad.lo.u32 %r11, %r2, 4, %r10;
mad.wide.u32 %d2, %r2, 4, %d1;
mov.u32 %r20, 0;
setp.eq.u32 %p1, %r1, 0;
setp.lt.u32 %p2, %r1, 32;
setp.eq.u32 %p5, %r1, 1;
@!%p1 bra MADE;
mbarrier.init.shared.b64 [%r10+512], 32;
mbarrier.init.shared.b64 [%r10+520], 32;
MADE:
bar.sync 0;
@%p2 bra READER;
add.u32 %r3, %r1, 100;
st.shared.u32 [%r11], %r3;
st.global.u32 [%d2+256], %r3;
mbarrier.arrive.shared.b64 _, [%r10+512];
mbarrier.arrive.shared.b64 _, [%r10+520];
setp.eq.u32 %p3, %r1, 32;
bar.warp.sync -1;
@%p3 st.release.gpu.global.u32 [%d1+512], 1;
bra DONE;
READER:
"""
END = """
st.global.u32 [%d2], %r20;
DONE:
"""
WAIT = "WAIT{n}: mbarrier.try_wait.parity.shared.b64 %p4, [%r10+{at}], 0;\n@!%p4 bra WAIT{n};\n"
POLL = "POLL{n}: ld.acquire.gpu.global.u32 %r4, [%d1+512];\nsetp.ne.u32 %p4, %r4, 1;\n@%p4 bra POLL{n};\n"
READ, READ_GLOBAL = "ld.shared.u32 %r20, [%r11];\n", "ld.global.u32 %r20, [%d2+256];\n"
MEETING = "bar.warp.sync -1;\n"


def by(what: str, lane: int | None = None, *, n: int = 0, at: int = 512) -> str:
    """``what`` by one lane of warp 0, or by all."""
    what = what.format(n=n, at=at)
    if lane is None:
        return what
    return f"@!%p{1 if lane == 0 else 5} bra BEHIND{n};\n{what}BEHIND{n}:\n"


def run(body: str) -> SimResult:
    return run_body(START + body + END, np.zeros(256, np.uint32), block=(64, 1, 1), smem_bytes=1024)


CASES = {
    "all wait": (by(WAIT) + READ, False),
    "one waits": (by(WAIT, 0) + READ, True),
    "one waits and they meet": (by(WAIT, 0) + MEETING + READ, False),
    "one waits and reads": (by(WAIT, 0) + "@%p1 " + READ, False),
    "one waits, another reads": (by(WAIT, 0) + "@%p5 " + READ, True),
    "one waits, then all": (by(WAIT, 0) + by(WAIT, n=1, at=520) + READ, False),
    "one by one": (by(WAIT, 0) + by(WAIT, 1, n=1) + "@%p5 " + READ, False),
    "one by one, all read": (by(WAIT, 0) + by(WAIT, 1, n=1) + READ, True),
    "in two branches": (
        "@!%p1 bra OTHERS;\n" + by(WAIT) + READ + "bra BOTH;\nOTHERS:\n" + by(WAIT, n=1, at=520) + READ + "BOTH:\n",
        False,
    ),
    "in two branches, one without": (
        "@!%p1 bra OTHERS;\n" + by(WAIT) + READ + "bra BOTH;\nOTHERS:\n" + READ + "BOTH:\n", True,
    ),
    "all poll": (by(POLL) + READ_GLOBAL, False),
    "one polls": (by(POLL, 0) + READ_GLOBAL, True),
    "one polls and they meet": (by(POLL, 0) + MEETING + READ_GLOBAL, False),
    "one overwrites": (by(WAIT, 0) + "st.shared.u32 [%r11], 7;\n", True),
    "what is known from before": (
        by(WAIT) + MEETING + by(WAIT, 0, n=1, at=520) + READ + "st.shared.u32 [%r11], 7;\n" + READ,
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_who_has_waited(name: str) -> None:
    body, found = CASES[name]
    result = run(body)
    assert result.status is (SimStatus.RACE if found else SimStatus.OK), str(result)


@pytest.mark.parametrize(("parity", "legal"), [(0, True), (2, False), (3, False)])
def test_a_parity_is_one_bit(parity: int, legal: bool) -> None:
    """PTX ISA, mbarrier.test_wait: "phaseParity ... integer parity, either 0 or 1"."""
    result = run(by(WAIT.replace(", 0;", f", {parity};")) + READ)
    assert result.status is (SimStatus.OK if legal else SimStatus.PROTOCOL_ERROR), str(result)
