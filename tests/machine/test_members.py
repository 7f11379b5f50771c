"""Member masks of ``.sync`` instructions: rules of the PTX ISA ("shfl.sync", "vote.sync", "elect.sync" ...)."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.run.run import SimResult
from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import run_body

EVERY_KIND = [
    "shfl.sync.bfly.b32 %r5, %r1, 1, 31, {mask};",
    "shfl.sync.idx.b32 %r5, %r4, 0, 31, {mask};",
    "vote.sync.any.pred %p5, %p4, {mask};",
    "match.any.sync.b32 %r5, %r1, {mask};",
    "redux.sync.add.u32 %r5, %r1, {mask};",
    "elect.sync %r5|%p5, {mask};",
    "bar.warp.sync {mask};",
]
SOME = """
mov.u32 %r1, %tid.x;
mov.u32 %r5, 77;
mov.u32 %r4, 3;
setp.eq.u32 %p4, %r4, 3;
setp.lt.u32 %p1, %r1, 8;
@!%p1 bra {elsewhere};
{text}
END:
ld.param.u64 %d1, [out];
mad.wide.u32 %d2, %r1, 4, %d1;
st.global.u32 [%d2], %r5;
DONE:
"""


def run(text: str, elsewhere: str = "END", threads: int = 32) -> tuple[SimResult, np.ndarray]:
    """Lanes 0 to 7 execute ``text``; the others go to ``END``, or exit at ``DONE``."""
    out = np.zeros(32, np.uint32)
    result = run_body(SOME.format(text=text, elsewhere=elsewhere), out, block=(threads, 1, 1))
    return result, out


@pytest.mark.parametrize("text", EVERY_KIND)
def test_named_lanes_that_went_another_way(text: str) -> None:
    result, _ = run(text.format(mask="0xffffffff"))
    assert result.status is SimStatus.PROTOCOL_ERROR
    assert text.split()[0] in str(result)
    assert "names 24 lanes (first 8, last 31) of warp0" in str(result)


@pytest.mark.parametrize("text", EVERY_KIND)
def test_a_lane_that_its_own_mask_leaves_out(text: str) -> None:
    result, _ = run(text.format(mask="0x7f"))
    assert result.status is SimStatus.PROTOCOL_ERROR
    assert "is executed by lane 7 of warp0, which its member mask 0x7f does not name" in str(result)


@pytest.mark.parametrize("text", EVERY_KIND)
def test_the_whole_warp_executes_what_names_a_part_of_it(text: str) -> None:
    assert run(text.format(mask="-1") + "\nbra END;", threads=8)[0].ok
    both = "\nLATER:\n" + text.format(mask="0xfffffffe")
    result, _ = run(both, elsewhere="LATER")
    assert "is executed by lane 0 of warp0" in str(result)


@pytest.mark.parametrize("text", EVERY_KIND)
def test_exited_lanes_are_not_waited_for(text: str) -> None:
    """ISA: until all non-exited threads of the mask have executed it."""
    result, _ = run(text.format(mask="0xffffffff"), elsewhere="DONE")
    assert result.ok, str(result)


@pytest.mark.parametrize("text", EVERY_KIND)
def test_lanes_that_name_themselves(text: str) -> None:
    result, _ = run(text.format(mask="0xff"))
    assert result.ok, str(result)


def test_a_mask_from_a_register() -> None:
    ask = "mov.u32 %r6, {};\nadd.u32 %r6, %r6, %r4;\n" + EVERY_KIND[0].format(mask="%r6")
    result, out = run(ask.format("0xfc"))
    assert result.ok, str(result)
    assert out[:9].tolist() == [1, 0, 3, 2, 5, 4, 7, 6, 77]
    assert run(ask.format("0x1fc"))[0].status is SimStatus.PROTOCOL_ERROR


@pytest.mark.parametrize("value", ["%r1", "%r4"])
def test_a_shuffle_reads_only_lanes_that_take_part(value: str) -> None:
    """Whether the value differs between lanes or not: an exited lane has no register to read."""
    text = f"shfl.sync.idx.b32 %r5, {value}, 9, 31, 0xffffffff;"
    result, _ = run(text, elsewhere="DONE")
    assert result.status is SimStatus.PROTOCOL_ERROR
    assert "reads a lane that does not take part" in str(result)


def test_under_a_guard() -> None:
    result, _ = run("LATER:\n@%p1 shfl.sync.bfly.b32 %r5, %r1, 1, 31, -1;", elsewhere="LATER")
    assert "names 24 lanes" in str(result)
