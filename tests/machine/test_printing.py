"""A kernel that prints runs, and prints nothing; a call of anything else is not modelled."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.run.run import run_ptx
from kernel_space.machine.values.faults import SimStatus, Unsupported
from tests.machine.ptx import program, run_body

BODY = """
mov.u32 %r1, %tid.x;
ld.param.u64 %d1, [out];
mad.wide.u32 %d2, %r1, 4, %d1;
setp.eq.u32 %p1, %r1, 3;
{{ // callseq 0
.param .b64 param0;
.param .b64 param1;
.param .b32 retval0;
st.param.b64 [param0], %d1;
st.param.b64 [param1], %d2;
{call}
}}
st.global.u32 [%d2], %r1;
"""


@pytest.mark.parametrize("guard", ["", "@%p1 ", "@!%p1 "])
def test_printing_changes_nothing(guard: str) -> None:
    out = np.full(32, 99, np.uint32)
    result = run_body(BODY.format(call=f"{guard}call.uni (retval0), vprintf, (param0, param1);"), out)
    assert result.ok, str(result)
    assert out.tolist() == list(range(32))


def test_another_call_is_not_modelled() -> None:
    with pytest.raises(Unsupported, match="call.uni"):
        run_body(
            BODY.format(call="call.uni (retval0), vprintf_it, (param0, param1);"), np.zeros(32, np.uint32)
        )


def test_how_much_was_printed_is_not_modelled() -> None:
    call = "call.uni (retval0), vprintf, (param0, param1);\nld.param.b32 %r2, [retval0];"
    assert run_body(BODY.format(call=call), np.zeros(32, np.uint32)).status is SimStatus.UNSUPPORTED


@pytest.mark.parametrize("reads", [False, True])
def test_a_format_has_an_address_and_no_memory(reads: bool) -> None:
    used = "ld.global.u8 %r3, [%d3];" if reads else "st.param.b64 [param0], %d3;"
    body = BODY.format(call="mov.b64 %d3, format_0;\n" + used)
    text = program(body, ".param .u64 out").replace(
        ".visible", ".global .align 1 .b8 format_0[3] = {41, 10};\n.visible"
    )
    result = run_ptx(text, np.zeros(32, np.uint32))
    assert result.status is (SimStatus.UNSUPPORTED if reads else SimStatus.OK), str(result)
