"""Undefined operands of matrix products: which elements of the accumulator they reach. Counted by hand from the
fragments and layouts that the PTX ISA draws."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.run.run import SimResult
from tests.machine.ptx import run_body
from tests.machine.test_tensor_core import PROGRAM, dense_idesc, drain, k_major_128, steps
from tests.machine.undefined_programs import assert_left, assert_refused

ONES_A, ONES_B = np.ones((128, 64), np.float16), np.ones((64, 64), np.float16)


def tensor(issue: str, image: np.ndarray, loaded: int, columns: int = 64) -> tuple[SimResult, np.ndarray]:
    """MMAs on the first ``loaded`` bytes of an image; the others are never written."""
    out = np.zeros((128, columns), np.uint32)
    body = PROGRAM.format(bytes=loaded, issue=issue, row_bytes=4 * columns, drain=drain(columns))
    result = run_body(
        body, out, image, params=".param .u64 out, .param .u64 image", block=(128, 1, 1),
        smem_bytes=1024 + image.size,
    )  # fmt: skip
    return result, out


def f16(m: int = 128) -> tuple[np.ndarray, int, int]:
    return k_major_128(ONES_A[:m].view(np.uint8), ONES_B.view(np.uint8))


def f16_steps(a: int, b: int, m: int = 128) -> str:
    return steps("f16", dense_idesc(m, 64, 0, 0), a, b, 4)


def test_a_row_of_b_that_nobody_wrote_is_a_column_of_the_result() -> None:
    image, a, b = f16()
    result, out = tensor(f16_steps(a, b), image, image.size)
    assert result.ok and (out.view(np.float32) == 64).all()
    result, out = tensor(f16_steps(a, b), image, image.size - 128)
    assert_left(result, 128 * 4, 63 * 4, "SMEM offset 0x67f0, never written", "first read by the tensor pipe")
    assert (out[:, :63].view(np.float32) == 64).all()


def test_a_column_that_is_not_stored_may_be_undefined() -> None:
    image, a, b = f16()
    out = np.zeros((128, 32), np.uint32)
    body = PROGRAM.format(bytes=image.size - 128, issue=f16_steps(a, b), row_bytes=128, drain=drain(32))
    result = run_body(
        body, out, image, params=".param .u64 out, .param .u64 image", block=(128, 1, 1),
        smem_bytes=1024 + image.size,
    )  # fmt: skip
    assert result.ok and (out.view(np.float32) == 64).all()


def test_half_a_row_of_k_is_enough() -> None:
    """The second 64 bytes of the last row are missing. Its chunk c lies at c ^ 7: the first two MMAs read them."""
    image, a, b = f16()
    result, _ = tensor(f16_steps(a, b), image, image.size - 64)
    assert_left(result, 128 * 4, 63 * 4, "SMEM offset 0x67f0, never written")


def test_without_accumulation_the_old_accumulator_does_not_matter() -> None:
    image, a, b = f16()
    overwrites = f16_steps(a, b)
    adds = overwrites.replace("setp.ne.u32 %p9, 0, 0;", "setp.eq.u32 %p9, 0, 0;")
    assert adds != overwrites
    assert tensor(overwrites, image, image.size)[0].ok
    result, _ = tensor(adds, image, image.size)
    assert_left(result, 128 * 64 * 4, 0, "TMEM column 0, never written")


def test_an_overwritten_accumulator_is_defined_again() -> None:
    """MMAs that add to nothing, then ones that overwrite."""
    image, a, b = f16()
    adds = f16_steps(a, b).replace("setp.ne.u32 %p9, 0, 0;", "setp.eq.u32 %p9, 0, 0;")
    result, out = tensor(adds + "\n" + f16_steps(a, b), image, image.size)
    assert result.ok and (out.view(np.float32) == 64).all()


def test_lanes_that_a_product_of_64_rows_leaves_out() -> None:
    """Of each quarter the upper 16 lanes."""
    image, a, b = f16(64)
    result, _ = tensor(f16_steps(a, b, 64), image, image.size)
    assert_left(result, 64 * 64 * 4, 16 * 64 * 4, "TMEM column 0, never written")


def test_disabled_lanes_stay_undefined() -> None:
    image, a, b = f16()
    off = "mov.b32 %r31, -1;\nmov.b32 %r32, 0;\n"
    issue = off + f16_steps(a, b).replace("%r30, %p9", "%r30, {%r31, %r32, %r32, %r32}, %p9")
    result, _ = tensor(issue, image, image.size)
    assert_left(result, 32 * 64 * 4, 0, "TMEM column 0, never written")


@pytest.mark.parametrize("operand", ["%d10", "%r30", "%p9"])
def test_descriptors_and_the_flag_must_be_defined(operand: str) -> None:
    image, a, b = f16()
    lines = [
        line
        for line in f16_steps(a, b).split("\n")
        if not line.startswith(("mov.b64 " + operand, "mov.b32 " + operand))
        and not line.startswith("setp.ne.u32 " + operand)
    ]
    result, _ = tensor("\n".join(lines), image, image.size)
    assert_refused(result, "an operand of tcgen05.mma.cta_group::1", operand, lanes=1)


# -- products of warps -------------------------------------------------------------------------------------------------
# 8 columns x 64 K elements of f16, swizzle of 128 bytes, in the first KB; each of 128 threads writes 8 bytes.
WGMMA = """
mov.u32 %r1, %tid.x;
mov.u64 %d1, 0x4000004000000040;
mov.u32 %r3, smem;
mad.lo.u32 %r2, %r1, 8, %r3;
{fill}
fence.proxy.async.shared::cta;
bar.sync 0;
and.b32 %r4, %r1, 31;
{fragments}
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{%r10, %r11, %r12, %r13}}, {a}, %d1, %p1, 1, 1, 0{sign};
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
ld.param.u64 %d2, [out];
mad.wide.u32 %d2, %r1, 16, %d2;
st.global.v4.b32 [%d2], {{%r10, %r11, %r12, %r13}};
"""
FILL = "mov.b32 %r5, 0;\nst.shared.v2.u32 [%r2], {%r5, %r5};"
FRAGMENTS = (
    "mov.b32 %r20, 0; mov.b32 %r21, 0; mov.b32 %r22, 0; mov.b32 %r23, 0;\nsetp.ne.u32 %p1, 0, {scale};"
)


def wgmma(fill: str = FILL, fragments: str = FRAGMENTS, scale: int = 0, a: str = "") -> SimResult:
    out = np.zeros((128, 4), np.uint32)
    body = WGMMA.format(
        fill=fill, fragments=fragments.replace("{scale}", str(scale)), a=a or "{%r20, %r21, %r22, %r23}",
        sign=", 0" if a else "",
    )  # fmt: skip
    return run_body(body, out, block=(128, 1, 1), smem_bytes=16384)


def test_wgmma_reads_its_accumulators_only_where_it_adds() -> None:
    assert wgmma(scale=0).ok
    result = wgmma(scale=1)
    assert_left(result, 128 * 16, 0, "register %r10, never written")


def test_wgmma_fragments_make_rows_undefined() -> None:
    """Lane 5 of each warp leaves out its second register: row 5 // 4 + 8 = 9, which is d2 and d3 of lanes 4 to 7."""
    partly = FRAGMENTS.replace("mov.b32 %r21, 0;", "setp.ne.u32 %p2, %r4, 5;\n@%p2 mov.b32 %r21, 0;")
    result = wgmma(fragments=partly)
    assert_left(result, 4 * 4 * 8, 72, "register %r21")  # the first is d2 of lane 4


def test_wgmma_columns_in_shared_memory() -> None:
    """Threads 80 to 95 write row 5 of B: column 5 is d1 and d3 of lanes 4 g + 2."""
    gap = "setp.eq.u32 %p2, %r9, 5;\n@!%p2 st.shared"
    fill = "shr.u32 %r9, %r1, 4;\n" + FILL.replace("st.shared", gap)
    result = wgmma(fill=fill)
    assert_left(
        result, 4 * 8 * 2 * 4, 36, "SMEM offset 0x6d0, never written"
    )  # d1 of lane 2; chunk 0 of row 5


def test_wgmma_rows_in_shared_memory() -> None:
    """A has 64 rows of 128 bytes, of which the first 8 are B's as well; the others are never written. Row 0 to 7 are
    d0 and d1 of the first warp."""
    result = wgmma(a="%d1")
    assert_left(result, 128 * 16 - 32 * 8, 8, "SMEM offset 0x8")  # d2 of lane 0


MMA = """
mov.u32 %r1, %tid.x;
mov.b32 %r20, 0; mov.b32 %r22, 0; mov.b32 %r23, 0; mov.b32 %r24, 0; mov.b32 %r25, 0; mov.b32 %r21, 0;
mov.b32 %r30, 0; mov.b32 %r31, 0; mov.b32 %r32, 0; mov.b32 %r33, 0;
{undefine}
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{%r10, %r11, %r12, %r13}}, {{%r20, %r21, %r22, %r23}},
  {{%r24, %r25}}, {{%r30, %r31, %r32, %r33}};
ld.param.u64 %d2, [out];
mad.wide.u32 %d2, %r1, 16, %d2;
st.global.v4.b32 [%d2], {{%r10, %r11, %r12, %r13}};
"""


@pytest.mark.parametrize(
    ("register", "lane", "count", "first"),
    [
        ("%r20", 5, 4 * 8, 64),  # a0: row 1, d0 and d1 of lanes 4 to 7
        ("%r21", 5, 4 * 8, 72),  # a1: row 9, d2 and d3
        ("%r25", 12, 8 * 8, 20),  # b1: column 3, d1 and d3 of lanes 4 g + 1
        ("%r32", 7, 4, 120),  # c2: itself
    ],
)
def test_mma_sync(register: str, lane: int, count: int, first: int) -> None:
    out = np.zeros((32, 4), np.uint32)
    assert run_body(MMA.format(undefine=""), out).ok
    undefine = f"setp.eq.u32 %p2, %r1, {lane};\n@%p2 mov.b32 {register}, %r99;"
    assert_left(run_body(MMA.format(undefine=undefine), out), count, first, "register %r99")
