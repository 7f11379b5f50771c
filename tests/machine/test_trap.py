"""trap stops the kernel when its guard holds, and only then; which lanes hold it follows from the programs."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.run.run import SimResult
from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import run_body

LANE = "mov.u32 %r1, %tid.x;\nsetp.{test} %p1, %r1, 40;\n"
CHOICE = "ld.param.u32 %r1, [choice];\nsetp.ne.u32 %p1, %r1, 0;\n"


def run(body: str, choice: int = 0) -> SimResult:
    params = ".param .u64 out, .param .u32 choice"
    return run_body(body, np.zeros(32, np.uint32), choice, params=params)


def test_trap_stops_the_kernel() -> None:
    result = run("trap;")
    assert not result.ok
    assert "trap" in result.findings[0].text


@pytest.mark.parametrize(("choice", "guard"), [(0, "@%p1"), (1, "@!%p1")])
def test_guard_that_no_lane_holds(choice: int, guard: str) -> None:
    assert run(CHOICE + f"{guard} trap;\nmov.u32 %r2, 1;", choice).status is SimStatus.OK
    test = "gt.u32" if guard == "@%p1" else "lt.u32"  # of 32 lanes none is above 40, all are below
    assert run(LANE.format(test=test) + f"{guard} trap;\nmov.u32 %r2, 1;").status is SimStatus.OK


@pytest.mark.parametrize(("choice", "guard"), [(1, "@%p1"), (0, "@!%p1")])
def test_guard_that_holds(choice: int, guard: str) -> None:
    assert not run(CHOICE + f"{guard} trap;\nmov.u32 %r2, 1;", choice).ok
    assert not run("mov.u32 %r1, %tid.x;\nsetp.eq.u32 %p1, %r1, 7;\n@%p1 trap;\nmov.u32 %r2, 1;").ok
