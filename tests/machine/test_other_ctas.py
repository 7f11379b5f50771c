"""Shared memory of another CTA of the cluster exists from the begin of that CTA to its end, which only a barrier of the
cluster, or something else that it has done, tells. CUDA C++ Programming Guide, "Distributed Shared Memory".
"""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.run.run import SimResult
from kernel_space.machine.run.schedules import SCHEDULES
from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import run_body

START = """
mov.u32 %r1, %cluster_ctarank;
mov.u32 %r10, smem;
xor.b32 %r2, %r1, 1;
mapa.shared::cluster.u32 %r3, %r10, %r2;
ld.param.u64 %d1, [out];
mad.wide.u32 %d2, %r1, 4, %d1;
add.u32 %r4, %r1, 5;
"""
MEET = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
RELAXED = "barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;\n"
OWN = "st.shared.u32 [%r10], %r4;\n"
THEIRS = "ld.shared::cluster.u32 %r5, [%r3];\n"
INTO = "st.shared::cluster.u32 [%r3+16], %r4;\n"
ADD = "red.relaxed.cluster.shared::cluster.add.u32 [%r3+16], %r4;\n"
END = "st.global.u32 [%d2], %r5;\n"


def run(body: str, schedule: str) -> SimResult:
    out = np.zeros(2, np.uint32)
    text = START + "mov.u32 %r5, 0;\nst.shared.u32 [%r10+16], 0;\n" + body + END
    return run_body(
        text, out, smem_bytes=64, grid=(2, 1, 1), cluster=(2, 1, 1), block=(32, 1, 1), schedule=schedule
    )


CASES = {
    "between barriers": (OWN + MEET + THEIRS + RELAXED, ""),
    "no barrier at the end": (OWN + MEET + THEIRS, "may end before"),
    "a barrier before the last load": (OWN + MEET + MEET + THEIRS, "may end before"),
    "stores between barriers": (MEET + INTO + MEET, ""),
    "stores before a barrier that releases nothing": (MEET + INTO + RELAXED, "may end before"),
    "stores before any barrier": (INTO + MEET, "may not have begun"),
    "stores behind the last barrier": (MEET + INTO, "may end before"),
    "adds between barriers": (RELAXED + MEET + ADD + MEET, ""),
    "adds behind the last barrier": (MEET + ADD, "may end before"),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", CASES)
def test_it_has_begun_and_has_not_ended(name: str, schedule: str) -> None:
    body, says = CASES[name]
    result = run(body, schedule)
    assert result.status is (SimStatus.RACE if says else SimStatus.OK), str(result)
    assert says in str(result)
