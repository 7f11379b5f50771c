"""The lanes of one access to shared memory may mean several CTAs of the cluster, as on an H200."""

from __future__ import annotations

import numpy as np
import pytest

from tests.machine.ptx import run_body

MEET = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
BODY = """
ld.param.u64 %d1, [out];
mov.u32 %r10, smem;
mov.u32 %r1, %tid.x;
mov.u32 %r2, %cluster_ctarank;
mad.lo.u32 %r3, %r2, 32, %r1;
mul.wide.u32 %d2, %r3, 4;
add.u64 %d1, %d1, %d2;
and.b32 %r4, %r1, 1;
mad.lo.u32 %r5, %r3, 4, %r10;
mapa.shared::cluster.u32 %r6, %r5, %r4;
mad.lo.u32 %r7, %r2, 100, %r1;
{meet}
{guard}st.shared::cluster.b32 [%r6], %r7;
{meet}
{guard}ld.shared::cluster.b32 %r8, [%r6];
st.global.b32 [%d1], %r8;
{meet}
"""


@pytest.mark.parametrize(("guard", "first"), [("", 0), ("@%p1 ", 7)])
def test_even_lanes_use_cta_0_and_odd_lanes_cta_1(guard: str, first: int) -> None:
    """Lane t of CTA c writes 100 c + t to word 32 c + t of CTA t % 2 and reads it there, from lane ``first`` on."""
    out = np.zeros(64, np.uint32)
    body = f"mov.u32 %r8, 5;\nmov.u32 %r9, %tid.x;\nsetp.ge.u32 %p1, %r9, {first};\n" + BODY.format(
        meet=MEET, guard=guard
    )
    result = run_body(body, out, grid=(2, 1, 1), cluster=(2, 1, 1), smem_bytes=512)
    assert result.ok, str(result)
    expected = [[100 * c + t if t >= first else 5 for t in range(32)] for c in range(2)]
    assert out.reshape(2, 32).tolist() == expected


def test_each_cta_holds_the_words_of_its_own_lanes() -> None:
    """Read back by rank 0 and rank 1 from their own memory: word 32 c + t lies in CTA t % 2 alone."""
    out = np.zeros((2, 64), np.uint32)
    clear = "mov.u32 %r20, smem;\nmov.u32 %r21, %tid.x;\nmad.lo.u32 %r22, %r21, 8, %r20;\n"
    clear += "mov.u32 %r23, 0;\nst.shared.v2.b32 [%r22], {%r23, %r23};\n"
    dump = "ld.shared.v2.b32 {%r24, %r25}, [%r22];\nld.param.u64 %d5, [out];\nmul.wide.u32 %d6, %r2, 256;\n"
    dump += "add.u64 %d5, %d5, %d6;\nmul.wide.u32 %d6, %r21, 8;\nadd.u64 %d5, %d5, %d6;\n"
    dump += "st.global.v2.b32 [%d5], {%r24, %r25};\n"
    scatter = BODY.format(meet=MEET, guard="").replace("st.global.b32 [%d1], %r8;", "")
    result = run_body(clear + scatter + dump, out, grid=(2, 1, 1), cluster=(2, 1, 1), smem_bytes=512)
    assert result.ok, str(result)
    for rank in range(2):
        words = [100 * (n // 32) + n % 32 if n % 2 == rank else 0 for n in range(64)]
        assert out[rank].tolist() == words
