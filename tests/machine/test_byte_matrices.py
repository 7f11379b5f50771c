"""``ldmatrix.m16n16.trans.b8``. The oracle is the destination layout that CUTLASS's copy traits state for it: bytes of
lane (i, j) = (t % 4, t / 4), register h: rows 4 i to 4 i + 3 of the 16 that lanes point at, column j + 8 h.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.run.run import SimResult
from kernel_space.machine.values.faults import SimStatus
from tests.machine.ptx import run_body

BODY = """
mov.u32 %r1, %tid.x;
ld.param.u64 %d1, [out];
mov.u32 %r10, smem;
mad.lo.u32 %r11, %r1, 16, %r10;
mad.wide.u32 %d2, %r1, 16, %d1;
ld.global.v4.u32 {{%r2, %r3, %r4, %r5}}, [%d2];
{guard}st.shared.v4.u32 [%r11], {{%r2, %r3, %r4, %r5}};
bar.sync 0;
xor.b32 %r12, %r1, {turned};
mad.lo.u32 %r13, %r12, 16, %r10;
ldmatrix.sync.aligned.m16n16.{count}.trans.shared.b8 {{{into}}}, [%r13];
st.global.v4.u32 [%d2+512], {{{kept}}};
"""


def run(data: np.ndarray, count: int, turned: int = 0, guard: str = "") -> SimResult:
    names = ["%r20", "%r21", "%r22", "%r23"][: 2 * count]
    kept = [*names, "%r2", "%r3"][:4]
    body = BODY.format(
        count=f"x{count}", turned=turned, guard=guard, into=", ".join(names), kept=", ".join(kept)
    )
    return run_body(body, data, block=(32, 1, 1), smem_bytes=1024)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("turned", [0, 5])
def test_every_byte_is_where_the_layout_says(count: int, turned: int) -> None:
    data = np.zeros((64, 16), np.uint8)
    data[:32] = np.random.default_rng(3).integers(0, 256, (32, 16))
    rows = data[:32].copy()
    result = run(data, count, turned)
    assert result.ok, str(result)
    got = data[32:].reshape(32, 4, 4)
    for lane in range(32):
        i, j = lane % 4, lane // 4
        for register in range(2 * count):
            matrix, h = divmod(register, 2)
            expected = [rows[(16 * matrix + 4 * i + byte) ^ turned][j + 8 * h] for byte in range(4)]
            assert got[lane, register].tolist() == expected, (lane, register)


def test_a_row_that_nobody_wrote_is_followed() -> None:
    """Row 6 is byte 2 of the registers of lanes with t % 4 = 1."""
    result = run(np.zeros((64, 16), np.uint8), 2, guard="setp.ne.u32 %p1, %r1, 6;\n@%p1 ")
    assert result.status is SimStatus.ILLEGAL_ACCESS and "0x460" in str(result), str(result)


def test_it_is_a_read() -> None:
    """Another warp's bytes without a barrier."""
    body = BODY.format(
        count="x2", turned=32, guard="", into="%r20, %r21, %r22, %r23", kept="%r20, %r21, %r22, %r23"
    )
    for text, status in ((body, SimStatus.OK), (body.replace("bar.sync 0;", ""), SimStatus.RACE)):
        result = run_body(text, np.zeros((128, 16), np.uint8), block=(64, 1, 1), smem_bytes=1024)
        assert result.status is status, str(result)


def test_unpacking_of_four_bits_is_not_modelled() -> None:
    body = (
        "mov.u32 %r1, smem;\nldmatrix.sync.aligned.m16n16.x1.trans.shared.b8x16.b4x16_p64 {%r2, %r3}, [%r1];"
    )
    assert run_body(body, np.zeros(4, np.uint32), smem_bytes=1024).status is SimStatus.UNSUPPORTED
