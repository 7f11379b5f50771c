"""Programs of a few lines for the tests of undefined values, and what a finding must say."""

from __future__ import annotations

import numpy as np

from kernel_space.machine.run.run import SimResult
from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import program, run_body

STORE = """
ld.param.u64 %d60, [out];
mov.u32 %r250, %tid.x;
mul.wide.u32 %d61, %r250, 4;
add.u64 %d60, %d60, %d61;
st.global.b32 [%d60], {value};
"""
CHOICE = ".param .u64 out, .param .u32 choice"
LOAD_CHOICE = "ld.param.u32 %r1, [choice];\nsetp.ne.u32 %p1, %r1, 0;\n"


def store(value: str) -> str:
    """``value`` of each thread to ``out``."""
    return STORE.format(value=value)


def run(body: str, *values: int, **options: object) -> tuple[SimResult, list[int]]:
    """Run a body on 32 words of output; ``values``: the parameter ``choice``, or nothing."""
    out = np.zeros(32, np.uint32)
    params = CHOICE if values else ".param .u64 out"
    return run_body(body, out, *values, params=params, smem_bytes=4096, **options), out.tolist()


def line_of(body: str, instruction: str) -> int:
    """PTX line of the first line of ``body`` that starts with ``instruction``."""
    lines = program(body).splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().startswith(instruction))


def assert_left(result: SimResult, count: int, first: int, *words: str) -> None:
    """``count`` undefined bytes are left in ``out``, ``first`` the first; the one finding has the ``words``."""
    assert result.status is SimStatus.ILLEGAL_ACCESS, str(result)
    assert len(result.findings) == 1, str(result)
    text = result.findings[0].text
    assert f"out holds {count} undefined bytes at the end of the launch, the first at byte {first}\n" in text
    for word in words:
        assert word in text, text


def assert_refused(result: SimResult, what: str, register: str, *words: str, lanes: int = 32) -> None:
    """The run ended because ``what`` is undefined in ``lanes`` lanes."""
    assert result.status is SimStatus.ILLEGAL_ACCESS, str(result)
    text = result.findings[-1].text
    assert f"{what} is undefined: register {register}, in {lanes} of the warp's lanes" in text, text
    for word in words:
        assert word in text, text
